"""The delivery as a handler sees it, and publishing from a handler."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypedDict, Unpack

from hopback.broker.reply_publisher import DIRECT_REPLY, is_reply_address
from hopback.clock import Clock, SystemClock
from hopback.durations import Duration, parse_wait_ms
from hopback.errors import ReplyRefused
from hopback.message import Delivery, Message, Properties, require_message
from hopback.policy.reading import Reading
from hopback.runtime.payload import encode_payload
from hopback.runtime.publish_arguments import check_publish, explain_arguments
from hopback.text import did_you_mean
from hopback.waiting import is_on_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from hopback.fields import Headers
    from hopback.runtime.codecs import Codecs, Compression
    from hopback.topology.plan import Plan

current_context: ContextVar[Context] = ContextVar("hopback_current_context")
"""The context of the delivery that is being handled. Messages published meanwhile refer to it."""


class Send(Protocol):
    """Publishes a message. `ended` is set when the delivery that causes the publish is lost."""

    def __call__(
        self, message: Message, ended: asyncio.Event | None = None, /
    ) -> Coroutine[Any, Any, None]:
        """Publish and wait for the confirm."""


class BatchRun:
    """One run of a batch handler: its publishes depend on the channel of its deliveries."""

    __slots__ = ("has_ended", "session_ended")

    def __init__(self, session_ended: asyncio.Event) -> None:
        self.session_ended: asyncio.Event = session_ended
        self.has_ended: bool = False


current_batch: ContextVar[BatchRun] = ContextVar("hopback_current_batch")
"""The batch that is being handled by this task."""


def end_of_session() -> asyncio.Event | None:
    """The event that is set when the run that calls this cannot settle any more.

    None outside a run, and in a task that outlived the run which started it.
    """
    batch = current_batch.get(None)
    if batch is not None and not batch.has_ended:
        return batch.session_ended
    context = current_context.get(None)
    if context is None or context._has_ended:
        return None
    return getattr(context.delivery, "session_ended", None)


class Context:
    """One delivery as its handler sees it. Properties are read on demand, so unused ones cost no
    time.
    """

    _codecs: ClassVar[Codecs | None] = None
    """The application's codecs, which encode payloads by content type (see `context_with`)."""
    _reply_queues: ClassVar[tuple[str, ...]] = ()
    """The queues that replies may go to, beside direct reply addresses. Patterns as of `fnmatch`."""
    _clock: ClassVar[Clock] = SystemClock()

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
        self._publishes: list[Coroutine[Any, Any, None]] | None = None
        """The publishes that the handler has to await. None until the first one."""
        self._reading: Reading | None = None
        self.has_replied: bool = False
        """Whether `reply` was called."""
        self._has_ended: bool = False
        """Whether the run is over: a task that it left behind publishes on its own account."""

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self._read().attempt

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure of this run parks the message."""
        return self.attempt >= self.plan.attempts

    @property
    def queue(self) -> str:
        """The queue the message came from."""
        return self.delivery.queue

    @property
    def headers(self) -> Headers:
        """The headers as they came."""
        return self.delivery.properties.headers

    @property
    def message_id(self) -> str:
        """The message id, or a stable hash of content and origin for a message without one."""
        return self.delivery.properties.message_id or self._read().message_id

    @property
    def correlation_id(self) -> str:
        """The correlation id, or the message id where there is none."""
        return self.delivery.properties.correlation_id or self.message_id

    @property
    def routing_key(self) -> str:
        """The routing key the message was first published with, also on a retry."""
        return self._read().origin[1]

    def now(self) -> datetime:
        """Return the current time in UTC, in tests that of the virtual clock."""
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
        """Publish to the queue `routing_key`, or to an exchange, and wait for the confirm.

        The message gets the correlation id and the trace of this one. The call must be awaited.
        Otherwise the message is not published, and the message of this context is parked with that
        reason. In a sync handler use `publish_sync`.
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
        """Publish from a sync handler, in its thread. It returns after the confirm."""
        send_from_thread(self._publish, self._compose(routing_key, payload, exchange, options))

    def send(self, message: Message) -> Coroutine[Any, Any, None]:
        """Publish a message that is already composed and wait for the confirm. To be awaited."""
        publishing = send_from_loop(self._publish, require_message(message))
        watch_publish(self, publishing)
        return publishing

    def _compose(
        self, routing_key: str, payload: object, exchange: str, options: PublishOptions
    ) -> Message:
        return compose(
            routing_key, payload, exchange=exchange, cause=self, codecs=self._codecs, **options
        )

    @property
    def wants_reply(self) -> bool:
        """Whether the sender of the message waits for a reply."""
        return bool(self.delivery.properties.reply_to)

    def reply(
        self, payload: object, **options: Unpack[PublishOptions]
    ) -> Coroutine[Any, Any, None]:
        """Reply to the sender, with the correlation id of the request. To be awaited.

        It is fire and forget: a sender that has stopped waiting is not an error. Raises ValueError
        if the message does not ask for a reply (`wants_reply`). Raises ReplyRefused, which parks
        the message, if its `reply_to` is neither a direct reply address nor one of the
        application's reply queues. In a sync handler use `reply_sync`.
        """
        return self.send(self._compose_reply(payload, options))

    def reply_sync(self, payload: object, **options: Unpack[PublishOptions]) -> None:
        """Reply from a sync handler, in its thread. It returns after the confirm."""
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
    """Raise ReplyRefused if a reply is wanted at an address that the application has not declared."""
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


def watch_publish(context: Context, publishing: Coroutine[Any, Any, None]) -> None:
    """Remember a publish that the handler has to await."""
    if context._publishes is None:
        context._publishes = []
    context._publishes.append(publishing)


def publishes_of(context: Context) -> list[Coroutine[Any, Any, None]] | None:
    """Return the publishes that the handler has to await, or None if it made none."""
    return context._publishes


async def close_unstarted(publishes: list[Coroutine[Any, Any, None]]) -> int:
    """Close the publishes that the handler has not awaited when it returned, and count them."""
    if any(map(_is_unstarted, publishes)):
        await asyncio.sleep(0)  # a publish that was made a task starts now
    left = [one for one in publishes if _is_unstarted(one)]
    for one in left:
        one.close()
    return len(left)


def end_run(context: Context) -> None:
    """Mark the run as over."""
    context._has_ended = True


def context_with(codecs: Codecs | None, reply_queues: Sequence[str], clock: Clock) -> type[Context]:
    """Return the context class of an application. Most applications need no special one."""
    if codecs is None and not reply_queues and isinstance(clock, SystemClock):
        return Context
    given, queues, time = codecs, tuple(reply_queues), clock

    class AppContext(Context):
        """A context with the application's codecs and reply queues, and the service's clock."""

        __slots__ = ()
        _codecs = given
        _reply_queues = queues
        _clock = time

    return AppContext


def send_from_loop(
    send: Callable[[Message], Coroutine[Any, Any, None]], message: Message
) -> Coroutine[Any, Any, None]:
    """Return the publish, to be awaited. Raise RuntimeError in a thread, which cannot await it."""
    if not is_on_loop():
        raise RuntimeError(
            "expected `publish_sync(…)` or `reply_sync(…)` in a sync handler, which runs in a thread: "
            "got a call that has to be awaited"
        )
    return send(message)


def send_from_thread(
    send: Callable[[Message], Coroutine[Any, Any, None]], message: Message
) -> None:
    """Publish in a thread and wait for the confirm. Raise RuntimeError on an event loop."""
    if is_on_loop():
        raise RuntimeError(
            "publish_sync is for sync handlers, which run in a thread: here, on the event loop, "
            "write `await context.publish(…)`"
        )
    _finished = send(message)  # a thread has waited for it


def _is_unstarted(publishing: Coroutine[Any, Any, None]) -> bool:
    return (
        inspect.iscoroutine(publishing)
        and inspect.getcoroutinestate(publishing) == inspect.CORO_CREATED
    )


TRACE_HEADERS = ("traceparent", "tracestate", "baggage")
"""W3C trace context: passed on from the message that is being handled."""

trace_source: ContextVar[Callable[[], Headers]] = ContextVar("hopback_trace_source")
"""Gives the trace headers of the present moment where runs are traced: the current span, not the
one that the message came with."""


_BYTES = (bytes, bytearray, memoryview, str)
"""Payloads that are sent unchanged, whatever their content type."""


class PublishOptions(TypedDict, total=False):
    """The options of a published message.

    By default `message_id` is generated and `correlation_id` is copied from the cause. `expiration`
    is the maximum time in a queue. `content_type` selects the codec of the payload. Bytes are only
    labelled with it. `compress` compresses the body and sets the property `content_encoding`.
    `mandatory=False` is fire and forget: an unroutable message is dropped without an error. Direct
    replies are always sent this way. `delay` or `at` (a datetime with time zone) hold the message
    in the broker, if the application has declared `app.delays()`. Durations are `"2h"`, a number of
    seconds or a timedelta.
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
    """Build a persistent message with an id, and the correlation id and trace of its cause.

    Without `exchange` the message goes to the queue named `routing_key`.
    The default `cause` is the delivery that is being handled, if any. `codecs` encode the payload
    by its `content_type`. Without them it is encoded as JSON or by its type.
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
    # RabbitMQ delivers a direct reply and yet returns it as unroutable.
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
        present["expiration"] = str(_wait_ms("expiration", expiration))
    if (compress := options.get("compress")) is not None:
        from hopback.runtime.codecs import compress_body

        body = compress_body(body, compress)
        present["content_encoding"] = compress
    mandatory = mandatory and options.get("mandatory", True)
    delay = _delay_of(options)
    return Message(exchange, routing_key, body, Properties.of(present), mandatory, delay)


def check_options(options: Mapping[str, Any], *more: str) -> None:
    """Raise TypeError for an unknown publish option not in `more`, with the nearest option, and for an
    option of another type.
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
    raise TypeError(
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
    return _wait_ms("delay", delay)


def _wait_ms(option: str, value: Duration) -> int:
    try:
        return parse_wait_ms(value)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _trace_headers(cause: Context | None) -> Headers:
    """The trace: of the current span where runs are traced, else of the message that is the cause."""
    current = trace_source.get(None)
    if current is not None:
        return current()
    if cause is None:
        return {}
    return {name: cause.headers[name] for name in TRACE_HEADERS if name in cause.headers}


class Outlet:
    """Sends messages to the broker from coroutines and threads.

    On the event loop `send` returns an awaitable. In a thread it returns after the publish has
    finished.
    """

    def __init__(
        self, publish: Callable[[Message, asyncio.Event | None], Coroutine[None, None, None]]
    ) -> None:
        self._publish = publish
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the service while it runs."""

    def send(
        self, message: Message, ended: asyncio.Event | None = None
    ) -> Coroutine[Any, Any, None]:
        """Publish and wait for the confirm. Raises the publisher's errors.

        `ended` is the end of the publishing run's session, by default that of the current run.
        """
        publishing = self._publish(message, end_of_session() if ended is None else ended)
        if self.loop is not None and not is_on_loop():
            asyncio.run_coroutine_threadsafe(publishing, self.loop).result()
        return publishing
