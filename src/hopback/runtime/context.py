"""The context passed to handlers, and functions for composing messages."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypedDict, TypeVar, Unpack

from hopback.broker.reply_publisher import DIRECT_REPLY, is_reply_address
from hopback.clock import Clock, SystemClock
from hopback.durations import Duration, parse_wait_ms
from hopback.errors import ReplyRefused
from hopback.message import Delivery, Message, Properties, require_message
from hopback.policy.reading import Reading
from hopback.runtime.payload import encode_payload
from hopback.runtime.publish_arguments import WrongCall, check_publish, explain_arguments
from hopback.text import did_you_mean
from hopback.waiting import is_on_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from hopback.fields import Headers
    from hopback.runtime.codecs import Codecs, Compression
    from hopback.runtime.requests import RequestClient
    from hopback.topology.plan import Plan

REQUEST_TIMEOUT: Duration = "10s"
"""Default timeout of a request."""

R = TypeVar("R")

current_context: ContextVar[Context] = ContextVar("hopback_current_context")
"""The context of the message that is being handled."""


class Send(Protocol):
    """The signature of functions that publish messages. `ended` is set when the current delivery is
    lost.
    """

    def __call__(
        self, message: Message, ended: asyncio.Event | None = None, /
    ) -> Coroutine[Any, Any, None]:
        """Publish a message and wait for the confirm."""


class BatchRun:
    __slots__ = ("has_ended", "session_ended")

    def __init__(self, session_ended: asyncio.Event) -> None:
        self.session_ended: asyncio.Event = session_ended
        self.has_ended: bool = False


current_batch: ContextVar[BatchRun] = ContextVar("hopback_current_batch")
"""The batch that is being handled."""


def end_of_session() -> asyncio.Event | None:
    """Return the event that is set once the current delivery can no longer be settled.

    Returns None when called outside of a handler or after the handler has returned.
    """
    batch = current_batch.get(None)
    if batch is not None and not batch.has_ended:
        return batch.session_ended
    context = current_context.get(None)
    if context is None or context._has_ended:
        return None
    return getattr(context.delivery, "session_ended", None)


class Context:
    """The message that is being handled. Handlers can take this as an argument."""

    _codecs: ClassVar[Codecs | None] = None
    """The codecs of the application."""
    _reply_queues: ClassVar[tuple[str, ...]] = ()
    """Queues that replies may be sent to, as `fnmatch` patterns."""
    _clock: ClassVar[Clock] = SystemClock()
    _requests: ClassVar[RequestClient | None] = None

    __slots__ = (
        "_has_ended",
        "_publish",
        "_publishes",
        "_reading",
        "delivery",
        "has_replied",
        "plan",
    )

    def __init__(
        self,
        delivery: Delivery,
        plan: Plan,
        publish: Callable[[Message], Coroutine[Any, Any, None]],
    ) -> None:
        self.delivery: Delivery = delivery
        self.plan: Plan = plan
        self._publish = publish
        self._publishes: list[Coroutine[Any, Any, Any]] | None = None
        """Publishes that must be awaited by the handler."""
        self._reading: Reading | None = None
        self.has_replied: bool = False
        """True if `reply` was called."""
        self._has_ended: bool = False
        """True if the handler has returned. Tasks that are still running can publish independently.
        """

    @property
    def attempt(self) -> int:
        """The number of this attempt, starting at 1."""
        return self._read().attempt

    @property
    def is_last_attempt(self) -> bool:
        """True if the message is dead-lettered when this attempt fails."""
        return self.attempt >= self.plan.attempts

    @property
    def queue(self) -> str:
        return self.delivery.queue

    @property
    def headers(self) -> Headers:
        return self.delivery.properties.headers

    @property
    def message_id(self) -> str:
        """The message id. If the message has none, a hash of its content."""
        return self.delivery.properties.message_id or self._read().message_id

    @property
    def correlation_id(self) -> str:
        """The correlation id. Defaults to the message id."""
        return self.delivery.properties.correlation_id or self.message_id

    @property
    def routing_key(self) -> str:
        """The routing key that the message was originally published with. Retries do not change it."""
        return self._read().origin[1]

    def now(self) -> datetime:
        """Return the current time in UTC. In tests, this is the virtual time."""
        return datetime.fromtimestamp(self._clock.now(), UTC)

    def _read(self) -> Reading:
        if self._reading is None:
            self._reading = Reading(self.delivery, self.plan)
        return self._reading

    @explain_arguments
    def publish(
        self,
        routing_key: str,
        payload: object,
        *,
        exchange: str = "",
        **options: Unpack[PublishOptions],
    ) -> Coroutine[Any, Any, None]:
        """Publish a message and wait for the confirm.

        The message is published to the queue `routing_key` unless an exchange is given. It inherits
        the correlation id and trace. This must be awaited. If it is not, the message is not
        published and the current message is dead-lettered. Use `publish_sync` in sync handlers.
        """
        return self.send(self._compose(routing_key, payload, exchange, options))

    @explain_arguments
    def publish_sync(
        self,
        routing_key: str,
        payload: object,
        *,
        exchange: str = "",
        **options: Unpack[PublishOptions],
    ) -> None:
        """Publish a message from a sync handler and wait for the confirm."""
        send_from_thread(self._publish, self._compose(routing_key, payload, exchange, options))

    def send(self, message: Message) -> Coroutine[Any, Any, None]:
        """Publish a composed message and wait for the confirm. Must be awaited."""
        publishing = send_from_loop(self._publish, require_message(message))
        watch_publish(self, publishing)
        return publishing

    def _compose(
        self, routing_key: str, payload: object, exchange: str, options: PublishOptions
    ) -> Message:
        return compose(
            routing_key, payload, exchange=exchange, cause=self, codecs=self._codecs, **options
        )

    @explain_arguments
    def request(
        self,
        routing_key: str,
        payload: object,
        *,
        exchange: str = "",
        timeout: Duration = REQUEST_TIMEOUT,
        returns: type[R] | Any = Any,
        **options: Unpack[PublishOptions],
    ) -> Coroutine[Any, Any, R | Any]:
        """Send a request and wait for the reply. Must be awaited. See `RequestClient`.

        The request continues the current trace, but gets a new correlation id, which is needed to
        match the reply.

        Raises:
            NoReply: If there is no reply within `timeout`.
        """
        require_loop("await context.request(…)")
        if self._requests is None:
            raise RuntimeError("expected a context of a running service")
        asking = self._requests.request_with(
            self._codecs, routing_key, payload, exchange, timeout, returns, options
        )
        watch_publish(self, asking)
        return asking

    @property
    def wants_reply(self) -> bool:
        """Whether the sender is waiting for a reply."""
        return bool(self.delivery.properties.reply_to)

    def reply(
        self, payload: object, **options: Unpack[PublishOptions]
    ) -> Coroutine[Any, Any, None]:
        """Reply to the message. Must be awaited. Use `reply_sync` in sync handlers.

        It is not an error if the sender is no longer waiting.

        Raises:
            ValueError: If no reply is requested (see `wants_reply`).
            ReplyRefused: If `reply_to` is neither a direct reply-to address nor a reply queue of
                the application. The message is dead-lettered.
        """
        return self.send(self._compose_reply(payload, options))

    def reply_sync(self, payload: object, **options: Unpack[PublishOptions]) -> None:
        """Reply from a sync handler and wait for the confirm."""
        send_from_thread(self._publish, self._compose_reply(payload, options))

    def _compose_reply(self, payload: object, options: PublishOptions) -> Message:
        properties = self.delivery.properties
        if not properties.reply_to:
            raise ValueError(
                "expected a message that asks for a reply, got one without the property `reply_to`: "
                "look at `context.wants_reply` first"
            )
        check_reply_to(self)
        self.has_replied = True
        options["correlation_id"] = properties.correlation_id or properties.message_id
        options["mandatory"] = False
        return self._compose(properties.reply_to, payload, "", options)


def check_reply_to(context: Context) -> None:
    """Raise ReplyRefused if replies to this address are not allowed."""
    address = context.delivery.properties.reply_to
    if not address:
        return
    if address.startswith(DIRECT_REPLY):
        if not is_reply_address(address):
            raise ReplyRefused(
                f"reply_to: expected a direct reply address as RabbitMQ makes them, got {address!r}"
            )
    elif not any(fnmatchcase(address, one) for one in context._reply_queues):
        raise ReplyRefused(
            "reply_to: expected a direct reply address or a declared reply queue"
            f" ({', '.join(context._reply_queues) or 'none is declared'}), got {address!r}. Declare the"
            " queues that replies may go to with App(reply_queues=[…])"
        )


def watch_publish(context: Context, publishing: Coroutine[Any, Any, Any]) -> None:
    """Keep track of a publish that has to be awaited."""
    if context._publishes is None:
        context._publishes = []
    context._publishes.append(publishing)


def publishes_of(context: Context) -> list[Coroutine[Any, Any, Any]] | None:
    return context._publishes


async def close_unstarted(publishes: list[Coroutine[Any, Any, Any]]) -> int:
    """Close all publishes that the handler did not await, and return how many there were."""
    if any(map(_is_unstarted, publishes)):
        await asyncio.sleep(0)  # let publishes start that were wrapped in a task
    left = [one for one in publishes if _is_unstarted(one)]
    for one in left:
        one.close()
    return len(left)


def end_run(context: Context) -> None:
    context._has_ended = True


def context_with(
    codecs: Codecs | None,
    reply_queues: Sequence[str],
    clock: Clock,
    requests: RequestClient | None = None,
) -> type[Context]:
    """Create the context class for an application."""
    given, queues, time, client = codecs, tuple(reply_queues), clock, requests

    class AppContext(Context):
        """A context bound to the settings of an application."""

        __slots__ = ()
        _codecs = given
        _reply_queues = queues
        _clock = time
        _requests = client

    AppContext.__name__ = AppContext.__qualname__ = Context.__name__  # for errors and `repr`
    return AppContext


def require_loop(call: str) -> None:
    if not is_on_loop():
        raise RuntimeError(
            f"expected `{call}` in an async handler, got a call in a sync handler, which runs in a thread"
        )


def send_from_loop(
    send: Callable[[Message], Coroutine[Any, Any, None]], message: Message
) -> Coroutine[Any, Any, None]:
    """Publish from the event loop. Raises RuntimeError if called in a thread."""
    if not is_on_loop():
        raise RuntimeError(
            "expected `publish_sync(…)` or `reply_sync(…)` in a sync handler, which runs in a thread: "
            "got a call that has to be awaited"
        )
    return send(message)


def send_from_thread(
    send: Callable[[Message], Coroutine[Any, Any, None]], message: Message
) -> None:
    """Publish from a thread and wait for the confirm. Raises RuntimeError on the event loop."""
    if is_on_loop():
        raise RuntimeError(
            "publish_sync is for sync handlers, which run in a thread: here, on the event loop, "
            "write `await context.publish(…)`"
        )
    _finished = send(message)  # the check was already done if called in a thread


def _is_unstarted(publishing: Coroutine[Any, Any, Any]) -> bool:
    return (
        inspect.iscoroutine(publishing)
        and inspect.getcoroutinestate(publishing) == inspect.CORO_CREATED
    )


TRACE_HEADERS = ("traceparent", "tracestate", "baggage")
"""W3C trace context headers."""

trace_source: ContextVar[Callable[[], Headers]] = ContextVar("hopback_trace_source")
"""Returns the trace headers of the current span, if tracing is enabled."""


_BYTES = (bytes, bytearray, memoryview, str)
"""Payload types that are sent unchanged."""


class PublishOptions(TypedDict, total=False):
    """Options for publishing a message.

    Durations can be strings such as `"2h"`, seconds or timedeltas.

    Attributes:
        message_id: Defaults to a generated id.
        correlation_id: Defaults to the correlation id of the message being handled.
        expiration: Maximum time in a queue.
        content_type: Selects the codec. Bytes are not encoded.
        compress: Compression of the body. Sets `content_encoding`.
        mandatory: If False, the message is silently dropped if it is unroutable. This is always the
            case for direct replies.
        delay: Delay before the message is delivered. Requires `app.delays()`.
        at: Time when the message is delivered, with a time zone. Requires `app.delays()`.
    """

    message_id: str | None
    message_type: str | None
    correlation_id: str | None
    headers: Headers | None
    priority: int | None
    expiration: Duration | None
    reply_to: str | None
    content_type: str | None
    compress: Compression | None
    mandatory: bool
    delay: Duration | None
    at: datetime | None


_PRIORITIES = range(256)
_TEXTS = ("message_id", "message_type", "correlation_id", "reply_to", "content_type")
_OPTIONS = frozenset(PublishOptions.__annotations__)


@explain_arguments
def compose(
    routing_key: str,
    payload: object,
    *,
    exchange: str = "",
    cause: Context | None = None,
    codecs: Codecs | None = None,
    **options: Unpack[PublishOptions],
) -> Message:
    """Create a persistent message with a message id and correlation id.

    Args:
        routing_key: The routing key, or the name of a queue if there is no exchange.
        payload: The payload.
        exchange: The exchange to publish to.
        cause: The context to take the correlation id and trace from. Defaults to the message being
            handled.
        codecs: Codecs for encoding the payload. JSON is used by default.
        options: See `PublishOptions`.
    """
    check_options(options)
    check_publish(routing_key, payload, exchange)
    content_type = options.get("content_type")
    body = None
    if codecs is not None and content_type and not isinstance(payload, _BYTES):
        body = codecs.encode(payload, content_type)
    if body is None:
        body, own_type = encode_payload(payload)
        content_type = content_type or own_type
    cause = cause if cause is not None else current_context.get(None)
    own_id = options.get("message_id") or str(uuid.uuid4())
    present: dict[str, Any] = {
        "delivery_mode": 2,
        "correlation_id": options.get("correlation_id")
        or (cause.correlation_id if cause else own_id),
        "message_id": own_id,
    }
    given = options.get("headers")
    inherited = _trace_headers(cause)
    if inherited or given is not None:
        present["headers"] = {**inherited, **(given or {})}
    if content_type:
        present["content_type"] = content_type
    # RabbitMQ returns direct replies as unroutable even when it delivers them.
    mandatory = bool(exchange) or not routing_key.startswith(DIRECT_REPLY)
    if not options:
        return Message(exchange, routing_key, body, Properties.of(present), mandatory)
    if (message_type := options.get("message_type")) is not None:
        present["type"] = message_type
    if (reply_to := options.get("reply_to")) is not None:
        present["reply_to"] = reply_to
    if (priority := options.get("priority")) is not None:
        present["priority"] = priority
    if (expiration := options.get("expiration")) is not None:
        present["expiration"] = str(parse_wait(expiration, "expiration"))
    if (compress := options.get("compress")) is not None:
        from hopback.runtime.codecs import compress_body

        body = compress_body(body, compress)
        present["content_encoding"] = compress
    mandatory = mandatory and options.get("mandatory", True)
    delay = _delay_of(options)
    return Message(exchange, routing_key, body, Properties.of(present), mandatory, delay)


def check_options(options: Mapping[str, Any], *more: str) -> None:
    """Check the types of publish options.

    Raises:
        TypeError: If an option does not exist or has the wrong type. `more` contains additional
            options.
    """
    if not options:
        return
    if options.keys() <= _OPTIONS:
        for name in _TEXTS:
            text = options.get(name)
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{name}: expected a text, got {text!r}")
        headers, priority = options.get("headers"), options.get("priority")
        if headers is not None and not isinstance(headers, Mapping):
            raise TypeError(f"headers: expected a mapping, got {type(headers).__name__}")
        if priority is not None and priority not in _PRIORITIES:
            raise ValueError(f"expected a priority from 0 to 255, got {priority!r}")
        return
    known = ("exchange", *PublishOptions.__annotations__, *more)
    name = next(name for name in options if name not in known)
    raise WrongCall(
        f"unexpected option {name!r}{did_you_mean(name, known)}: expected {', '.join(known)}"
    )


def _delay_of(options: PublishOptions) -> int | datetime | None:
    delay, at = options.get("delay"), options.get("at")
    if delay is None:
        if at is not None and at.tzinfo is None:
            raise ValueError(f"expected `at` with a time zone, got {at.isoformat()}")
        return at
    if at is not None:
        raise ValueError(f"expected `delay` or `at`, got both: {delay!r} and {at.isoformat()}")
    return parse_wait(delay, "delay")


def parse_wait(value: Duration, option: str) -> int:
    """Convert an option to milliseconds. Raises ValueError with the name of the option."""
    try:
        return parse_wait_ms(value)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _trace_headers(cause: Context | None) -> Headers:
    """Return the trace headers of the current span. Defaults to those of the message being handled."""
    current = trace_source.get(None)
    if current is not None:
        return current()
    if cause is None:
        return {}
    return {name: cause.headers[name] for name in TRACE_HEADERS if name in cause.headers}


class Outlet:
    """Publishes messages from coroutines and threads.

    On the event loop, `send` must be awaited. In a thread, it blocks until the message was
    published.
    """

    def __init__(
        self, publish: Callable[[Message, asyncio.Event | None], Coroutine[None, None, None]]
    ) -> None:
        self._publish = publish
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the running service."""

    def send(
        self, message: Message, ended: asyncio.Event | None = None
    ) -> Coroutine[Any, Any, None]:
        """Publish a message and wait for the confirm.

        `ended` defaults to the event of the message being handled.
        """
        publishing = self._publish(message, end_of_session() if ended is None else ended)
        if self.loop is not None and not is_on_loop():
            asyncio.run_coroutine_threadsafe(publishing, self.loop).result()
        return publishing
