"""The application object: queues with their failure plans, and the handlers of their messages.

Declaring touches no broker. What runs an application (`hopback run`, `Service`, the test kit) asks it
for its topology and its handlers.
"""

# ruff: noqa: SLF001 - a router hands what it has to the router that includes it, and nobody else

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from inspect import iscoroutinefunction
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from hopback.errors import InvalidTopology, Problem
from hopback.policy.outcome import MENU, Outcome, Rule, check_rules, is_outcome
from hopback.policy.periodic import Missed
from hopback.runtime.context import (
    PublishOptions,
    compose,
    current_context,
    publish_from_thread,
    watch_publish,
)
from hopback.runtime.delays import Cancellations, DueMessages
from hopback.runtime.handler import (
    BatchHandler,
    BatchOptions,
    Handler,
    HandlerOptions,
    blames_rows,
    deadline_seconds,
    inspect_batch_handler,
    inspect_handler,
    require_queue_name,
    wait_ms,
    waits_ms,
)
from hopback.runtime.message_types import TypedHandlers, TypeOf, by_property
from hopback.runtime.middleware import Middleware, check_middleware
from hopback.runtime.periodic import Periodic, read_schedule
from hopback.runtime.push import PushHandler, PushTarget
from hopback.runtime.requests import REQUEST_TIMEOUT
from hopback.topology.delays import DUE, LONGEST_DELAY, delay_topology, schedule_queue
from hopback.topology.durations import Duration, duration_seconds
from hopback.topology.expand import hardened_queues, recommended_plan, unique_queues
from hopback.topology.feed import Bind, Feed, feeds_of
from hopback.topology.model import Binding, Exchange, Topology, joined

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from datetime import timedelta

    from hopback.message import Delivery, Message
    from hopback.policy.breaker import BreakerPolicy
    from hopback.runtime.codecs import Codecs
    from hopback.runtime.dependencies import Provider
    from hopback.runtime.failures import OnError
    from hopback.runtime.service import Service
    from hopback.topology.plan import Plan

AnyHandler: TypeAlias = Handler | BatchHandler | PushHandler | TypedHandlers
H = TypeVar("H", bound="Callable[..., Outcome | Awaitable[Outcome | None] | None]")
F = TypeVar("F", bound="Callable[..., Any]")
R = TypeVar("R")
B = TypeVar("B", bound="Callable[..., Awaitable[Sequence[Outcome | None] | None]]")
M = TypeVar("M", bound="Middleware")

# In two parts, because pyright reads no text that is put together from several.
_MixedWaits: TypeAlias = "list[str | int] | list[Duration] | tuple[Duration, ...]"
Waits: TypeAlias = "list[str] | list[int] | list[float] | list[timedelta] | _MixedWaits | None"
"""The waits after the first, second, … failure; None: the first failure parks.

Any iterable would take a text, and `retry="30s"` would be three waits of one letter.
"""

_RETRY = ("30s", "5m", "30m")
"""How long failed messages wait when nothing else is said."""


class _Unsaid(Enum):
    """Stands for an option that was not given where None means something."""

    UNSAID = "unsaid"


_UNSAID: Final = _Unsaid.UNSAID


class _HowHandled(TypedDict, total=False):
    """What `handler` takes for every kind of handler."""

    retry: Waits | Literal[_Unsaid.UNSAID]
    attempts: int | None
    bind: Bind | None
    rules: Iterable[Rule]
    concurrency: int
    prefetch: int | None
    deadline: Duration | None
    key: Callable[[Delivery], str | None] | None
    breaker: BreakerPolicy | None
    message_type: str | None


@dataclass(frozen=True, slots=True)
class _Declared:
    """What was said of a queue of Hopback's own design, whatever its name will be."""

    tiers_ms: tuple[int, ...]
    attempts: int | None
    feeds: tuple[Feed, ...]

    def plan(self, queue: str) -> Plan:
        """The failure plan of the queue, under its full name."""
        return recommended_plan(queue, tiers_ms=self.tiers_ms, attempts=self.attempts)

    def bindings(self, queue: str) -> Iterator[Binding]:
        """What leads to the queue."""
        for feed in self.feeds:
            yield from feed.bindings(queue)


class Router:
    """Queues and their handlers in a module of their own, to be included into an application.

    `prefix` begins the name of every queue declared here. Middleware of a router is put around the
    handlers of this router alone, inside that of the application.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.handlers: dict[str, AnyHandler] = {}
        """What handles each queue, by its name."""
        self._queues: dict[str, _Declared] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._middleware: list[Middleware] = []
        self._within: dict[str, tuple[Router, ...]] = {}
        self._types: dict[str, tuple[TypeOf, Outcome | None]] = {}
        self.periodic: dict[str, Periodic] = {}
        """What is sent again and again, by the queue it is sent to."""
        self._parents: list[Router] = []

    @property
    def is_included(self) -> bool:
        """Whether an application, or another router, has included it."""
        return bool(self._parents)

    @property
    def _where(self) -> str:
        return f"router {self.prefix!r}"

    def queue(
        self,
        name: str,
        *,
        retry: Waits = _RETRY,
        attempts: int | None = None,
        bind: Bind | None = None,
    ) -> None:
        """Declare a queue of the recommended design: waits, attempts, and what feeds it.

        `retry` lists the waits after the first, second, … failure (`"30s"`, `"5m"`); the last one
        serves all further attempts. With None there is no retry: the first failure parks. `bind`
        maps topic exchanges to the routing keys wanted of them, or is a `Feed`, or several.
        """
        require_queue_name("queue", name)
        tiers_ms = tuple(waits_ms(() if retry is None else retry, where=f"queue {name!r}"))
        if retry is not None and not tiers_ms:
            found = Problem("retry", 'waits like ["30s", "5m"], or None for no retry', "no wait")
            raise InvalidTopology((found,), where=f"queue {name!r}")
        self._declare(self.prefix + name, _Declared(tiers_ms, attempts, feeds_of(bind or {})))

    def _declare(self, name: str, declared: _Declared) -> None:
        self._refuse_second_plan(name)
        declared.plan(name)  # what cannot be planned is refused here
        for feed in declared.feeds:
            for exchange in feed.exchanges():
                known = self._exchanges.setdefault(exchange.name, exchange)
                if known.type != exchange.type:
                    found = Problem(
                        f"exchanges.{exchange.name}", f"a {known.type} exchange", exchange.type
                    )
                    raise InvalidTopology((found,), where=self._where)
        self._queues[name] = declared
        for parent in self._parents:
            parent._declare(parent.prefix + name, declared)

    def _refuse_second_plan(self, queue: str) -> None:
        if queue in self._queues:
            found = Problem(f"queues.{queue}", "one failure plan", "a second one")
            raise InvalidTopology((found,), where=self._where)

    @overload
    def handler(
        self, queue: str, *, replies: Literal[True], **how: Unpack[_HowHandled]
    ) -> Callable[[F], F]: ...

    @overload
    def handler(
        self, queue: str, *, replies: Literal[False] = False, **how: Unpack[_HowHandled]
    ) -> Callable[[H], H]: ...

    def handler(
        self,
        queue: str,
        *,
        retry: Waits | Literal[_Unsaid.UNSAID] = _UNSAID,
        attempts: int | None = None,
        bind: Bind | None = None,
        rules: Iterable[Rule] = (),
        concurrency: int = 10,
        prefetch: int | None = None,
        deadline: Duration | None = None,
        key: Callable[[Delivery], str | None] | None = None,
        breaker: BreakerPolicy | None = None,
        message_type: str | None = None,
        replies: bool = False,
    ) -> Callable[[F], F]:
        """Make a function the handler of a queue, or of its messages of one type.

        `retry`, `attempts` and `bind` declare the queue as `queue` does. The rest is how the
        handler runs (see `HandlerOptions`); `rules` say which exceptions park and which retry. With
        `replies` what it returns is the reply to a message that asks for one, unless it is an outcome;
        without, an annotation of anything else than an outcome is refused.
        """
        require_queue_name("handler", queue)
        if retry is not _UNSAID or attempts is not None or bind is not None:
            waits = _RETRY if retry is _UNSAID else retry
            self.queue(queue, retry=waits, attempts=attempts, bind=bind)
        queue = self.prefix + queue
        options = HandlerOptions(
            concurrency=concurrency,
            prefetch=prefetch,
            deadline=deadline_seconds(deadline),
            key=key,
            breaker=breaker,
            rules=check_rules(rules, where=f"handler of queue {queue!r}"),
        )

        def register(call: F) -> F:
            handler = inspect_handler(queue, call, options, replies=replies)
            if message_type is None:
                self.add_handler(handler)
            else:
                known = self.handlers.get(queue)
                if known is None:
                    type_of, unhandled = self._types.get(queue, (by_property, None))
                    known = TypedHandlers(queue, handler.options, {}, type_of, unhandled)
                elif not isinstance(known, TypedHandlers):
                    found = Problem(
                        f"handlers.{queue}", "one handler", f"another, of {message_type!r}"
                    )
                    raise InvalidTopology((found,), where=self._where)
                self._put(known.joined(message_type, handler))
            return call

        return register

    def types(
        self, queue: str, type_of: TypeOf = by_property, *, unhandled: Outcome | None = None
    ) -> None:
        """Say how the type of a queue's messages is told, and what becomes of those nobody handles.

        `by_property`, `by_header(name)`, `by_cloudevents` or a function of the delivery. What
        nobody handles is parked, unless `unhandled` is another outcome.
        """
        queue = self.prefix + queue
        if unhandled is not None and not is_outcome(unhandled):
            found = Problem("unhandled", f"an outcome: {MENU}", repr(unhandled))
            raise InvalidTopology((found,), where=f"types of queue {queue!r}")
        self._types[queue] = (type_of, unhandled)
        known = self.handlers.get(queue)
        if isinstance(known, TypedHandlers):
            self._put(replace(known, type_of=type_of, unhandled=unhandled))

    def batch(
        self,
        queue: str,
        *,
        size: int = 1000,
        wait: Duration = "1s",
        batchers: int = 2,
        prepare: Callable[..., Any] | None = None,
        processors: int = 10,
        isolates: Callable[[Exception], bool] = blames_rows,
        rules: Iterable[Rule] = (),
        deadline: Duration | None = None,
        breaker: BreakerPolicy | None = None,
        retry: Waits | Literal[_Unsaid.UNSAID] = _UNSAID,
        attempts: int | None = None,
        bind: Bind | None = None,
    ) -> Callable[[B], B]:
        """Make an async function of a list of payloads the batch handler of a queue.

        It returns nothing (all done) or an outcome for each. A batch goes at `size` messages or
        after `wait`; `batchers` run at once. `prepare` is a handler of one message that returns its
        row (or an outcome, if it is not to join a batch); `processors` of them run at once. The
        rest is in `BatchOptions`.
        """
        require_queue_name("batch", queue)
        if retry is not _UNSAID or attempts is not None or bind is not None:
            waits = _RETRY if retry is _UNSAID else retry
            self.queue(queue, retry=waits, attempts=attempts, bind=bind)
        queue = self.prefix + queue
        checked = check_rules(rules, where=f"batch handler of queue {queue!r}")
        seconds = wait_ms(wait, "wait", where=f"batch handler of queue {queue!r}") / 1000
        options = BatchOptions(
            size,
            seconds,
            batchers,
            isolates,
            checked,
            deadline=deadline_seconds(deadline),
            breaker=breaker,
        )
        each = HandlerOptions(concurrency=processors, rules=checked)
        preparing = (
            None if prepare is None else inspect_handler(queue, prepare, each, makes_row=True)
        )

        def register(call: B) -> B:
            self.add_handler(inspect_batch_handler(queue, call, options, preparing))
            return call

        return register

    def every(
        self,
        period: Duration | None = None,
        *,
        cron: str | None = None,
        timezone: str = "UTC",
        name: str | None = None,
        missed: Missed | str = Missed.ONCE,
        retry: Waits = _RETRY,
        attempts: int | None = None,
        rules: Iterable[Rule] = (),
        concurrency: int = 10,
        deadline: Duration | None = None,
    ) -> Callable[[H], H]:
        """Have a function called every so often, or by a line as cron has it, in one of all processes.

        What is due is a message with an id made of its name and the time, in the queue of that name
        (the function's, unless said), with retries like any other. `missed` says what becomes of what
        was due while nobody ran: `once` for all, `skip`, or `each`. The function takes a
        `PeriodicMessage`, a `Context`, both or nothing.
        """
        schedule = read_schedule(period, cron, timezone, where=f"{self._where}.every")
        checked = check_rules(rules, where=f"{self._where}.every")
        try:
            whatever_missed = Missed(missed)
        except ValueError:
            found = Problem("missed", " or ".join(map(repr, map(str, Missed))), repr(missed))
            raise InvalidTopology((found,), where=f"{self._where}.every") from None

        def register(call: H) -> H:
            queue = str(name or getattr(call, "__name__", ""))
            self.handler(
                queue,
                retry=retry,
                attempts=attempts,
                rules=checked,
                concurrency=concurrency,
                deadline=deadline,
            )(call)
            self._repeat(Periodic(self.prefix + queue, schedule, whatever_missed))
            return call

        return register

    def _repeat(self, periodic: Periodic) -> None:
        self.periodic[periodic.queue] = periodic
        for parent in self._parents:
            parent._repeat(replace(periodic, queue=parent.prefix + periodic.queue))

    def push(
        self,
        queue: str,
        url: str,
        *,
        timeout: Duration = 10.0,
        concurrency: int = 20,
        breaker: BreakerPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        bearer: str = "",
        secret: str = "",
    ) -> None:
        """Post each delivery of a queue to a service's endpoint; the HTTP status is its outcome.

        `headers` go with every request, `bearer` as its `Authorization`. With a `secret` each request
        is signed (`x-hopback-signature`), so that the service can tell that it comes from here.
        """
        target = PushTarget(
            url, duration_seconds(timeout), concurrency, headers or {}, bearer, secret
        )
        self.push_to(queue, target, breaker=breaker)

    def push_to(
        self, queue: str, target: PushTarget, *, breaker: BreakerPolicy | None = None
    ) -> None:
        """Post each delivery of a queue to a target; the same as `push`, with a target made already."""
        options = HandlerOptions(concurrency=target.connections, breaker=breaker)
        self.add_handler(PushHandler(self.prefix + queue, target, options))

    def add_handler(self, handler: AnyHandler) -> None:
        """Add a handler; a queue has one, so that each message has one outcome."""
        if handler.queue in self.handlers:
            found = Problem(f"handlers.{handler.queue}", "one handler", "a second one")
            raise InvalidTopology((found,), where=self._where)
        self._put(handler)

    def _put(self, handler: AnyHandler) -> None:
        self.handlers[handler.queue] = handler
        for parent in self._parents:
            parent._take(self, handler)

    def middleware(self, call: M) -> M:
        """Put an async function of context and `run` around every run; the first is the outermost."""
        check_middleware(call)
        self._middleware.append(call)
        return call

    def include(self, *routers: Router) -> None:
        """Take in the queues and handlers of routers, also those that they declare later."""
        for router in routers:
            if router is self or router in self._parents or self in router._parents:
                found = Problem("include", "each router once, and never itself", router._where)
                raise InvalidTopology((found,), where=self._where)
            router._parents.append(self)
            for name, declared in router._queues.items():
                self._declare(self.prefix + name, declared)
            for handler in router.handlers.values():
                self._take(router, handler)
            for periodic in router.periodic.values():
                self._repeat(replace(periodic, queue=self.prefix + periodic.queue))

    def _take(self, router: Router, handler: AnyHandler) -> None:
        queue = self.prefix + handler.queue
        within = (router, *router._within.get(handler.queue, ()))
        has_grown = isinstance(handler, TypedHandlers) and self._within.get(queue) == within
        self._within[queue] = within
        if has_grown:
            self._put(_moved(handler, queue))
        else:
            self.add_handler(_moved(handler, queue))

    def middleware_of(self, queue: str) -> tuple[Middleware, ...]:
        """What is put around the runs of a queue's handler, the outermost first."""
        if queue == DUE:
            return ()  # it is handled where it goes, not on its way there
        inner = (one for router in self._within.get(queue, ()) for one in router._middleware)
        return (*self._middleware, *inner)


class App(Router):
    """Queues, their failure plans and their handlers, under one name.

    A design that exists already (one of the documented patterns, or a TOML file) is given as
    `topology`; queues of Hopback's own, recommended design are added with `queue` or `handler`.
    `lifespan` makes an async context that is entered before the first delivery and left after the
    last: a database, a client, an outbox relay. `reply_queues` names the queues that `context.reply` may
    publish to, beside direct reply addresses. `*` stands for any characters.
    """

    def __init__(
        self,
        name: str = "app",
        *,
        topology: Topology | None = None,
        codes: Mapping[str, str] | None = None,
        lifespan: Callable[[App], AbstractAsyncContextManager[object]] | None = None,
        codecs: Codecs | None = None,
        reply_queues: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.name = name
        if isinstance(reply_queues, str):
            raise ValueError(f"reply_queues: expected a list of queue names, got {reply_queues!r}")
        self.reply_queues: tuple[str, ...] = tuple(reply_queues)
        """The queues that replies may go to, beside direct reply addresses."""
        self.codes: Mapping[str, str] = dict(codes or {})
        """Names of your own for events, as log lines carry them (`DESIGNS["event-bus"].codes`)."""
        self.codecs = codecs
        """What decodes and encodes payloads by their content type; None: JSON, or by their types."""
        self._lifespan = lifespan
        self._given = topology
        self._publish: Callable[[Message], Coroutine[Any, Any, None]] | None = None
        self._delays: Topology | None = None
        self._running: Service | None = None
        self.overrides: dict[Provider, Provider] = {}
        """Which providers take the place of others, from the next start on."""
        self.error_reports: list[OnError] = []
        """What is told of each failed run."""

    @property
    def _where(self) -> str:
        return f"app {self.name!r}"

    def _refuse_second_plan(self, queue: str) -> None:
        super()._refuse_second_plan(queue)
        if self._given is not None and self._given.plan(queue) is not None:
            found = Problem(f"queues.{queue}", "one failure plan", "a second one")
            raise InvalidTopology((found,), where=self._where)

    def delays(
        self, longest: Duration = LONGEST_DELAY, *, cancellations: Cancellations | None = None
    ) -> None:
        """Declare the queues in which messages wait that are published with `delay` or `at`.

        Every process of this application also sends on what is due; it waits in `hopback.delay.due` while
        nobody does. What cannot be delivered then is retried, and parked in `hopback.delay.due.dlq`.
        With `cancellations` (`hopback.store.DelayedMessages`) what waits can be cancelled by its message id;
        every application that sends on has to be given the same.
        """
        if self._delays is None:
            self._due = DueMessages(self.send, lambda: self.running_service)
            self.add_handler(
                inspect_handler(DUE, self._due.send_on, HandlerOptions(concurrency=50))
            )
        self._due.cancellations = cancellations or self._due.cancellations
        self._delays = delay_topology(longest)

    @contextmanager
    def override(self, provider: Provider, replacement: Provider) -> Iterator[None]:
        """Let one provider take the place of another in what is started meanwhile: for tests."""
        before = dict(self.overrides)
        self.overrides[provider] = replacement
        try:
            yield
        finally:
            self.overrides = before

    @property
    def topology(self) -> Topology:
        """Everything declared, as data. InvalidTopology names handled queues without failure plan."""
        given = self._given or Topology(self.name)
        plans = [declared.plan(queue) for queue, declared in self._queues.items()]
        ways = (way for queue, one in self._queues.items() for way in one.bindings(queue))
        schedules = [schedule_queue(queue) for queue in self.periodic]
        whole = replace(
            given,
            name=self.name,
            exchanges=_united(given.exchanges, self._exchanges.values()),
            queues=unique_queues(
                (
                    *given.queues,
                    *(queue for plan in plans for queue in hardened_queues(plan)),
                    *schedules,
                )
            ),
            bindings=_united(given.bindings, ways),
            plans=_united(given.plans, plans),
            unconsumed=given.unconsumed | {queue.name for queue in schedules},
        )
        if self._delays is not None:
            whole = replace(joined((whole, self._delays)), name=self.name, foreign=whole.foreign)
        unplanned = tuple(queue for queue in self.handlers if whole.plan(queue) is None)
        if unplanned:
            raise InvalidTopology(
                tuple(
                    Problem(f"queues.{queue}", _PLAN_EXPECTED, "no failure plan")
                    for queue in unplanned
                ),
                where=self._where,
            )
        return whole

    def connected(
        self,
        publish: Callable[[Message], Coroutine[Any, Any, None]] | None,
        service: Service | None = None,
    ) -> None:
        """Called by what runs the application: how `publish` reaches the broker from now on."""
        self._publish = publish
        self._running = service

    @property
    def running_service(self) -> Service:
        """What runs it, while it runs; RuntimeError otherwise."""
        if self._running is None:
            raise RuntimeError(
                f"app {self.name!r} is not running: expected to be asked in its lifespan"
            )
        return self._running

    def on_error(self, report: OnError) -> OnError:
        """Have a function called with the exception of each failed run, and its context.

        It is for error trackers: what it does or raises changes nothing for the message. It is
        called on the event loop, so it must be quick; usable as a decorator.
        """
        if iscoroutinefunction(report):
            found = Problem(
                "on_error", "a function that is not async", f"async def {report.__name__}"
            )
            raise InvalidTopology((found,), where=f"app {self.name!r}")
        self.error_reports.append(report)
        return report

    @property
    def has_lifespan(self) -> bool:
        """Whether it does something of its own while it runs, even without handlers."""
        return self._lifespan is not None

    def lifespan(self) -> AbstractAsyncContextManager[object]:
        """What is to live as long as the application runs; it can publish from its beginning."""
        return nullcontext() if self._lifespan is None else self._lifespan(self)

    def publish(
        self,
        exchange: str,
        routing_key: str,
        payload: object,
        **options: Unpack[PublishOptions],
    ) -> Coroutine[Any, Any, None]:
        """Publish and have it confirmed; PublishFailed says why it was not. To be awaited.

        Called from a handler, the message carries on the correlation id and the trace. In a sync
        handler use `publish_sync`.
        """
        message = compose(exchange, routing_key, payload, codecs=self.codecs, **options)
        return self.send(message)

    def publish_sync(
        self,
        exchange: str,
        routing_key: str,
        payload: object,
        **options: Unpack[PublishOptions],
    ) -> None:
        """The same from a thread of the application: it returns when the broker has confirmed."""
        publish_from_thread(self.publish(exchange, routing_key, payload, **options))

    def request(
        self,
        exchange: str,
        routing_key: str,
        payload: object,
        *,
        timeout: Duration = REQUEST_TIMEOUT,
        returns: type[R] | Any = Any,
        **options: Unpack[PublishOptions],
    ) -> Coroutine[Any, Any, R | Any]:
        """Publish a request and wait for the reply, decoded into `returns`. To be awaited.

        NoReply if none has come within `timeout`, or none can come any more; see `RequestClient`.
        """
        client = self.running_service.requests
        return client.request(
            exchange, routing_key, payload, timeout=timeout, returns=returns, **options
        )

    def send(self, message: Message) -> Coroutine[Any, Any, None]:
        """Publish a message that is composed already, as an outbox relay does."""
        if self._publish is None:
            raise RuntimeError(
                f"app {self.name!r} is not running: publish from a handler, inside `Service`, "
                "or use a Publisher of its own"
            )
        publishing = self._publish(message)
        cause = current_context.get(None)
        if cause is not None:
            watch_publish(cause, publishing)
        return publishing


def _moved(handler: AnyHandler, queue: str) -> AnyHandler:
    """The same handler for the queue under its full name."""
    if isinstance(handler, TypedHandlers):
        return handler.moved(queue)
    if isinstance(handler, BatchHandler) and handler.prepare is not None:
        return replace(handler, queue=queue, prepare=replace(handler.prepare, queue=queue))
    return replace(handler, queue=queue)


_PLAN_EXPECTED = (
    "a failure plan: give `retry=` to its handler, or a topology that has a plan for it"
)

V = TypeVar("V")


def _united(given: Iterable[V], own: Iterable[V]) -> tuple[V, ...]:
    """Both, each value once, in order. By equality: arguments are mappings and have no hash."""
    both = list(given)
    both += [one for one in own if one not in both]
    return tuple(both)
