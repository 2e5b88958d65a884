"""The application object: queues with their failure plans, and the handlers of their messages.

Declaring an application does not contact a broker. A runner (`hopback run`, `Service`, the test
kit) reads the topology and the handlers from it.
"""

# ruff: noqa: SLF001 - a router hands what it has to the router that includes it, and nobody else

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from inspect import isasyncgenfunction, iscoroutinefunction, signature
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NoReturn,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from hopback.durations import Duration, read_seconds
from hopback.errors import InvalidDeclaration, Problem
from hopback.message import require_message
from hopback.policy.outcome import MENU, Outcome, Rule, check_rules, is_outcome
from hopback.policy.periodic import Missed
from hopback.runtime.context import (
    PublishOptions,
    compose,
    current_context,
    send_from_loop,
    send_from_thread,
    watch_publish,
)
from hopback.runtime.delays import Cancellations, DueMessages
from hopback.runtime.dependencies import Need, Scope, needs_of
from hopback.runtime.handler import (
    BatchHandler,
    BatchOptions,
    Handler,
    HandlerOptions,
    Output,
    blames_rows,
    deadline_seconds,
    explain_options,
    inspect_batch_handler,
    inspect_handler,
    locate_errors,
    require_queue_name,
    waits_ms,
)
from hopback.runtime.message_types import TypedHandlers, TypeOf, by_property
from hopback.runtime.middleware import Middleware, check_middleware
from hopback.runtime.periodic import Periodic, read_schedule
from hopback.runtime.publish_arguments import explain_arguments
from hopback.runtime.push import PushHandler, PushTarget
from hopback.runtime.rate_limit import read_rate
from hopback.runtime.requests import REQUEST_TIMEOUT
from hopback.topology.delays import DUE, LONGEST_DELAY, delay_topology, schedule_queue
from hopback.topology.expand import harden_queues, recommend_plan, unique_queues
from hopback.topology.feed import Bind, Feed, feeds_of
from hopback.topology.model import Binding, Exchange, Topology, join_topologies

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
"""The waits after the first, second, … failure. With None the first failure parks the message.

The type is not `Iterable`, because a `str` is one: `retry="30s"` would be three waits of one
letter.
"""

_ONE_PLAN = (
    "one failure plan: one handler per queue, or `message_type=` for each and `retry=` for one"
)
_RETRY = ("30s", "5m", "30m")
"""Default waits of failed messages."""


class _Unsaid(Enum):
    """Marks an omitted option where None is a valid value."""

    UNSAID = "unsaid"


_UNSAID: Final = _Unsaid.UNSAID


class _HowHandled(TypedDict, total=False):
    """The options that `handler` accepts for every kind of handler."""

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
    rate: str | None
    publishes: Iterable[Output]


@dataclass(frozen=True, slots=True)
class _Declared:
    """The declaration of a queue of Hopback's recommended design, without its name."""

    tiers_ms: tuple[int, ...]
    attempts: int | None
    feeds: tuple[Feed, ...]

    def plan(self, queue: str) -> Plan:
        """The failure plan of the queue, under its full name."""
        return recommend_plan(queue, tiers_ms=self.tiers_ms, attempts=self.attempts)

    def bindings(self, queue: str) -> Iterator[Binding]:
        """Yield the bindings of the queue."""
        for feed in self.feeds:
            yield from feed.bindings(queue)


class Router:
    """Queues and handlers of one module, to be included into an application.

    `prefix` is prepended to the name of every queue declared here. The middleware of a router wraps
    only the handlers of this router. It runs inside the middleware of the application.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.handlers: dict[str, AnyHandler] = {}
        """The handler of each queue, by queue name."""
        self._queues: dict[str, _Declared] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._middleware: list[Middleware] = []
        self._within: dict[str, tuple[Router, ...]] = {}
        self._types: dict[str, tuple[TypeOf, Outcome | None]] = {}
        self.periodic: dict[str, Periodic] = {}
        """Periodic messages, by the queue they are sent to."""
        self._parents: list[Router] = []

    @property
    def is_included(self) -> bool:
        """Whether an application, or another router, has included it."""
        return bool(self._parents)

    @property
    def _where(self) -> str:
        return f"router {self.prefix!r}"

    @explain_options
    def queue(
        self,
        name: str,
        *,
        retry: Waits = _RETRY,
        attempts: int | None = None,
        bind: Bind | None = None,
    ) -> None:
        """Declare a queue of the recommended design: waits, attempts and bindings.

        `retry` lists the waits after the first, second, … failure (`"30s"`, `"5m"`). The last wait
        serves all further attempts. With None there is no retry and the first failure parks. `bind`
        maps topic exchanges to routing keys, or is one `Feed` or several.
        """
        require_queue_name("queue", name)
        where = f"queue {self.prefix + name!r}"
        tiers_ms = tuple(waits_ms(() if retry is None else retry, where=where))
        if retry is not None and not tiers_ms:
            found = Problem("retry", 'waits like ["30s", "5m"], or None for no retry', "no wait")
            raise InvalidDeclaration((found,), where=where)
        with locate_errors(where):
            declared = _Declared(tiers_ms, attempts, feeds_of(bind or {}))
            declared.plan(self.prefix + name)  # refuse an impossible plan here
        self._declare(self.prefix + name, declared)

    def _declare(self, name: str, declared: _Declared) -> None:
        self._refuse_second_plan(name)
        for feed in declared.feeds:
            for exchange in feed.exchanges():
                known = self._exchanges.setdefault(exchange.name, exchange)
                if known.type != exchange.type:
                    found = Problem(
                        f"exchanges.{exchange.name}", f"a {known.type} exchange", exchange.type
                    )
                    raise InvalidDeclaration((found,), where=self._where)
        self._queues[name] = declared
        for parent in self._parents:
            parent._declare(parent.prefix + name, declared)

    def _refuse_second_plan(self, queue: str) -> None:
        if queue in self._queues:
            known = self.handlers.get(queue)
            first = "a declaration of the queue" if known is None else _place_of(known)
            found = Problem(f"queues.{queue}", _ONE_PLAN, f"a second plan after that of {first}")
            raise InvalidDeclaration((found,), where=self._where)

    @overload
    def handler(
        self, queue: str, *, replies: Literal[True], **how: Unpack[_HowHandled]
    ) -> Callable[[F], F]: ...

    @overload
    def handler(
        self, queue: str, *, replies: Literal[False] = False, **how: Unpack[_HowHandled]
    ) -> Callable[[H], H]: ...

    @explain_options
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
        rate: str | None = None,
        publishes: Iterable[Output] = (),
        replies: bool = False,
    ) -> Callable[[F], F]:
        """Make a function the handler of a queue, or of its messages of one type.

        `retry`, `attempts` and `bind` declare the queue as `queue` does. The other options
        configure the handler (see `HandlerOptions`). `rules` specify which exceptions park and
        which retry. `rate` (`"100/s"`) limits the messages that this process starts. With `replies`
        the return value is the reply to a message that asks for one, unless it is an outcome.
        Without `replies` a return annotation other than an outcome is refused. `publishes` lists
        the handler's outputs for AsyncAPI documents.
        """
        require_queue_name("handler", queue)
        if retry is not _UNSAID or attempts is not None or bind is not None:
            waits = _RETRY if retry is _UNSAID else retry
            self.queue(queue, retry=waits, attempts=attempts, bind=bind)
        queue = self.prefix + queue
        where = f"handler of queue {queue!r}"
        with locate_errors(where):
            options = HandlerOptions(
                concurrency=concurrency,
                prefetch=prefetch,
                deadline=deadline_seconds(deadline, where=where),
                key=key,
                breaker=breaker,
                rules=check_rules(rules, where=where),
                rate=read_rate(rate, where=where),
            )

        def register(call: F) -> F:
            handler = inspect_handler(queue, call, options, replies=replies)
            handler = replace(handler, publishes=tuple(publishes))
            if message_type is None:
                self.add_handler(handler)
            else:
                known = self.handlers.get(queue)
                if known is None:
                    type_of, unhandled = self._types.get(queue, (by_property, None))
                    known = TypedHandlers(queue, handler.options, {}, type_of, unhandled)
                elif not isinstance(known, TypedHandlers):
                    self._refuse_second_handler(known, handler)
                self._put(known.with_handler(message_type, handler))
            return call

        return register

    def types(
        self, queue: str, type_of: TypeOf = by_property, *, unhandled: Outcome | None = None
    ) -> None:
        """Specify how to find the type of a queue's messages, and the outcome of types without a
        handler.

        `type_of` is `by_property`, `by_header(name)`, `by_cloudevents` or a function of the
        delivery. A message without a matching handler is parked, unless `unhandled` is another
        outcome.
        """
        queue = self.prefix + queue
        if unhandled is not None and not is_outcome(unhandled):
            found = Problem("unhandled", f"an outcome: {MENU}", repr(unhandled))
            raise InvalidDeclaration((found,), where=f"types of queue {queue!r}")
        self._types[queue] = (type_of, unhandled)
        known = self.handlers.get(queue)
        if isinstance(known, TypedHandlers):
            self._put(replace(known, type_of=type_of, unhandled=unhandled))

    @explain_options
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
        rate: str | None = None,
        retry: Waits | Literal[_Unsaid.UNSAID] = _UNSAID,
        attempts: int | None = None,
        bind: Bind | None = None,
    ) -> Callable[[B], B]:
        """Make an async function of a list of payloads the batch handler of a queue.

        It returns None (all messages are done) or one outcome per message. A batch starts at `size`
        messages or after `wait`. Up to `batchers` batches run concurrently. `prepare` handles one
        message and returns its row, or an outcome for a message that does not join a batch. Up to
        `processors` calls of it run concurrently. `BatchOptions` describes the other options.
        """
        require_queue_name("batch", queue)
        if retry is not _UNSAID or attempts is not None or bind is not None:
            waits = _RETRY if retry is _UNSAID else retry
            self.queue(queue, retry=waits, attempts=attempts, bind=bind)
        queue = self.prefix + queue
        where = f"batch handler of queue {queue!r}"
        checked = check_rules(rules, where=where)
        with locate_errors(where):
            options = BatchOptions(
                size,
                read_seconds(wait, "wait", where=where),
                batchers,
                isolates,
                checked,
                deadline=deadline_seconds(deadline, where=where),
                breaker=breaker,
                rate=read_rate(rate, where=where),
            )
        each = HandlerOptions(concurrency=processors, rules=checked)
        preparing = (
            None if prepare is None else inspect_handler(queue, prepare, each, makes_row=True)
        )

        def register(call: B) -> B:
            self.add_handler(inspect_batch_handler(queue, call, options, preparing))
            return call

        return register

    @explain_options
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
        """Call a function periodically or by a cron expression, in one of all processes.

        Each due call is a message in the queue `name` (default: the function's name), with retries
        like any other message. Its message id consists of the name and the due time. `missed`
        specifies the handling of calls that were due while no process ran: `once` for all of them,
        `skip`, or `each`. The function takes a `PeriodicMessage`, a `Context`, both or no
        arguments.
        """
        schedule = read_schedule(period, cron, timezone, where=f"{self._where}.every")
        checked = check_rules(rules, where=f"{self._where}.every")
        try:
            whatever_missed = Missed(missed)
        except ValueError:
            found = Problem("missed", " or ".join(map(repr, map(str, Missed))), repr(missed))
            raise InvalidDeclaration((found,), where=f"{self._where}.every") from None

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

    @explain_options
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
        """Post each delivery of a queue to an HTTP endpoint. The response status is its outcome.

        `headers` are sent with every request, `bearer` as its `Authorization`. With a `secret` each
        request is signed (`x-hopback-signature`), so that the service can verify its sender.
        """
        target = PushTarget(url, timeout, concurrency, headers or {}, bearer, secret)
        self.push_to(queue, target, breaker=breaker)

    def push_to(
        self, queue: str, target: PushTarget, *, breaker: BreakerPolicy | None = None
    ) -> None:
        """Post each delivery of a queue to an existing target. Otherwise the same as `push`."""
        options = HandlerOptions(concurrency=target.connections, breaker=breaker)
        self.add_handler(PushHandler(self.prefix + queue, target, options))

    def add_handler(self, handler: AnyHandler) -> None:
        """Add a handler. A queue has only one, so that each message has one outcome."""
        known = self.handlers.get(handler.queue)
        if known is not None:
            self._refuse_second_handler(known, handler)
        self._put(handler)

    def _refuse_second_handler(self, known: AnyHandler, second: AnyHandler) -> NoReturn:
        expected = "one handler, or one per type of message (`message_type=`)"
        got = f"{_place_of(second)} in addition to {_place_of(known)}"
        found = Problem(f"queue {known.queue!r}", expected, got)
        raise InvalidDeclaration((found,), where=self._where)

    def _put(self, handler: AnyHandler) -> None:
        self.handlers[handler.queue] = handler
        for parent in self._parents:
            parent._take(self, handler)

    def middleware(self, call: M) -> M:
        """Wrap an async function of context and `run` around every run. The first one is the
        outermost.
        """
        check_middleware(call)
        self._middleware.append(call)
        return call

    def include(self, *routers: Router) -> None:
        """Take in the queues and handlers of routers, also those that they declare later."""
        for router in routers:
            given: object = router
            if not isinstance(given, Router) or isinstance(given, App):
                expected = "a Router (`Service.add` runs a second App)"
                raise InvalidDeclaration(
                    (Problem("include", expected, repr(given)),), where=self._where
                )
            if router is self or router in self._parents or self in router._parents:
                found = Problem("include", "each router once, and never itself", router._where)
                raise InvalidDeclaration((found,), where=self._where)
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
            self._put(_move_handler(handler, queue))
        else:
            self.add_handler(_move_handler(handler, queue))

    def middleware_of(self, queue: str) -> tuple[Middleware, ...]:
        """Return the middleware of a queue's handler, outermost first."""
        if queue == DUE:
            return ()  # it is handled where it goes, not on its way there
        inner = (one for router in self._within.get(queue, ()) for one in router._middleware)
        return (*self._middleware, *inner)


class App(Router):
    """Queues, their failure plans and their handlers, under one name.

    `topology` takes an existing design: one of the documented patterns, or a TOML file. `queue` and
    `handler` add queues of Hopback's recommended design. `lifespan` makes an async context that is
    entered before the first delivery and left after the last, for example for a database, a client
    or an outbox relay. It takes the application, and dependencies of scope `application` as a
    handler does. `reply_queues` names the queues that `context.reply` may publish to, in
    addition to direct reply addresses. In these names `*` matches any characters.
    """

    def __init__(
        self,
        name: str = "app",
        *,
        topology: Topology | None = None,
        codes: Mapping[str, str] | None = None,
        lifespan: Callable[..., AbstractAsyncContextManager[object]] | None = None,
        codecs: Codecs | None = None,
        reply_queues: Sequence[str] = (),
    ) -> None:
        super().__init__()
        title: object = name
        if not isinstance(title, str) or not title:
            found = Problem("name", 'a name, as in `App("shop")`', repr(title))
            raise InvalidDeclaration((found,), where="App")
        self.name = name
        design: object = topology
        if design is not None and not isinstance(design, Topology):
            expected = "a Topology, as `read_toml(Path(file).read_text())` returns"
            raise InvalidDeclaration((Problem("topology", expected, repr(design)),), where="App")
        if isinstance(reply_queues, str):
            raise ValueError(f"reply_queues: expected a list of queue names, got {reply_queues!r}")
        self.reply_queues: tuple[str, ...] = tuple(reply_queues)
        """The queues that replies may go to, beside direct reply addresses."""
        self.codes: Mapping[str, str] = dict(codes or {})
        """Custom event names for log lines (`DESIGNS["event-bus"].codes`)."""
        self.codecs = codecs
        """Decode and encode payloads by content type. None: JSON, or by the payload's type."""
        self._lifespan = lifespan
        self.lifespan_needs: tuple[Need, ...] = ()
        """The application-scoped dependencies of the lifespan."""
        if isasyncgenfunction(lifespan) or iscoroutinefunction(lifespan):
            expected = "an async context manager: decorate the function with `@asynccontextmanager`"
            found = Problem("lifespan", expected, f"async def {lifespan.__name__}")
            raise InvalidDeclaration((found,), where=self._where)
        if lifespan is not None and len(signature(lifespan).parameters) > 1:
            self.lifespan_needs = needs_of(lifespan, "lifespan")
            for need in self.lifespan_needs:
                if need.depends is not None and need.depends.scope != Scope.APPLICATION:
                    found = Problem(need.name, 'scope="application"', str(need.depends.scope))
                    raise InvalidDeclaration((found,), where="lifespan")
        self._given = topology
        self._publish: Callable[[Message], Coroutine[Any, Any, None]] | None = None
        self._delays: Topology | None = None
        self._running: Service | None = None
        self.overrides: dict[Provider, Provider] = {}
        """Which providers take the place of others, from the next start on."""
        self.error_reports: list[OnError] = []
        """Functions called with the exception of each failed run."""

    @property
    def _where(self) -> str:
        return f"app {self.name!r}"

    def _refuse_second_plan(self, queue: str) -> None:
        super()._refuse_second_plan(queue)
        if self._given is not None and self._given.plan(queue) is not None:
            found = Problem(f"queues.{queue}", _ONE_PLAN, "a second plan after that of `topology=`")
            raise InvalidDeclaration((found,), where=self._where)

    def delays(
        self, longest: Duration = LONGEST_DELAY, *, cancellations: Cancellations | None = None
    ) -> None:
        """Declare the queues that hold messages published with `delay` or `at`.

        Every process of this application forwards due messages. While no process runs, they wait in
        `hopback.delay.due`. A due message that cannot be delivered is retried, and finally parked
        in `hopback.delay.due.dlq`. With `cancellations` (`hopback.store.DelayedMessages`) a waiting
        message can be cancelled by its message id. Every application that forwards messages needs
        the same `cancellations`.
        """
        read_seconds(longest, "longest", where=f"{self._where}.delays")
        if self._delays is None:
            self._due = DueMessages(self.send, lambda: self.running_service)
            self.add_handler(
                inspect_handler(DUE, self._due.send_on, HandlerOptions(concurrency=50))
            )
        self._due.cancellations = cancellations or self._due.cancellations
        self._delays = delay_topology(longest)

    @contextmanager
    def override(self, provider: Provider, replacement: Provider) -> Iterator[None]:
        """Replace a provider in services started inside this context. Intended for tests."""
        before = dict(self.overrides)
        self.overrides[provider] = replacement
        try:
            yield
        finally:
            self.overrides = before

    @property
    def topology(self) -> Topology:
        """Everything declared, as data. InvalidDeclaration names handled queues without failure plan."""
        given = self._given or Topology(self.name)
        plans = [declared.plan(queue) for queue, declared in self._queues.items()]
        ways = (way for queue, one in self._queues.items() for way in one.bindings(queue))
        schedules = [schedule_queue(queue) for queue in self.periodic]
        whole = replace(
            given,
            name=self.name,
            exchanges=_unite(given.exchanges, self._exchanges.values()),
            queues=unique_queues(
                (
                    *given.queues,
                    *(queue for plan in plans for queue in harden_queues(plan)),
                    *schedules,
                )
            ),
            bindings=_unite(given.bindings, ways),
            plans=_unite(given.plans, plans),
            unconsumed=given.unconsumed | {queue.name for queue in schedules},
        )
        if self._delays is not None:
            whole = replace(
                join_topologies((whole, self._delays)), name=self.name, foreign=whole.foreign
            )
        unplanned = tuple(queue for queue in self.handlers if whole.plan(queue) is None)
        if unplanned:
            raise InvalidDeclaration(
                tuple(
                    Problem(f"queues.{queue}", _PLAN_EXPECTED, "no failure plan")
                    for queue in unplanned
                ),
                where=self._where,
            )
        return whole

    def connect(
        self,
        publish: Callable[[Message], Coroutine[Any, Any, None]] | None,
        service: Service | None = None,
    ) -> None:
        """Set how `publish` reaches the broker. Called by the runner of the application."""
        self._publish = publish
        self._running = service

    @property
    def running_service(self) -> Service:
        """The service that runs this application. Raises RuntimeError while it is not running."""
        if self._running is None:
            raise RuntimeError(
                f"app {self.name!r} is not running: expected to be asked in its lifespan"
            )
        return self._running

    def on_error(self, report: OnError) -> OnError:
        """Call a function with the exception and the context of each failed run.

        It is meant for error trackers. Its result or exception does not affect the message. It is
        called on the event loop and must return quickly. It can be used as a decorator.
        """
        if iscoroutinefunction(report):
            found = Problem(
                "on_error", "a function that is not async", f"async def {report.__name__}"
            )
            raise InvalidDeclaration((found,), where=f"app {self.name!r}")
        self.error_reports.append(report)
        return report

    @property
    def has_lifespan(self) -> bool:
        """Whether it has a lifespan, and so has work to do even without handlers."""
        return self._lifespan is not None

    def lifespan(self, **values: Any) -> AbstractAsyncContextManager[object]:
        """Return the context that is open while the application runs. It can already publish."""
        return nullcontext() if self._lifespan is None else self._lifespan(self, **values)

    @explain_arguments
    def publish(
        self,
        routing_key: str,
        payload: object,
        *,
        exchange: str = "",
        **options: Unpack[PublishOptions],
    ) -> Coroutine[Any, Any, None]:
        """Publish to the queue `routing_key`, or to an exchange, and wait for the confirm. To be awaited.

        Raises PublishFailed with the reason if the message was not confirmed. A message published
        from a handler inherits its correlation id and trace. In a sync handler use `publish_sync`.
        """
        message = compose(routing_key, payload, exchange=exchange, codecs=self.codecs, **options)
        return self.send(message)

    @explain_arguments
    def publish_sync(
        self,
        routing_key: str,
        payload: object,
        *,
        exchange: str = "",
        **options: Unpack[PublishOptions],
    ) -> None:
        """Publish from a thread of the application. It returns after the confirm."""
        message = compose(routing_key, payload, exchange=exchange, codecs=self.codecs, **options)
        send_from_thread(self._outgoing(), message)

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
        """Publish a request and wait for the reply, decoded into `returns`. To be awaited.

        Raises NoReply if no reply arrives within `timeout` or none can arrive any more. See
        `RequestClient`.
        """
        client = self.running_service.requests
        return client.request(
            routing_key, payload, exchange=exchange, timeout=timeout, returns=returns, **options
        )

    def send(self, message: Message) -> Coroutine[Any, Any, None]:
        """Publish a message that is already composed, as an outbox relay does. To be awaited."""
        require_message(message)
        publishing = send_from_loop(self._outgoing(), message)
        cause = current_context.get(None)
        if cause is not None:
            watch_publish(cause, publishing)
        return publishing

    def _outgoing(self) -> Callable[[Message], Coroutine[Any, Any, None]]:
        if self._publish is None:
            raise RuntimeError(
                f"app {self.name!r} is not running: publish from a handler or in its lifespan. "
                "Other programs use a Publisher or SyncPublisher"
            )
        return self._publish


def _move_handler(handler: AnyHandler, queue: str) -> AnyHandler:
    """The same handler for the queue under its full name."""
    if isinstance(handler, TypedHandlers):
        return handler.with_queue(queue)
    if isinstance(handler, BatchHandler) and handler.prepare is not None:
        return replace(handler, queue=queue, prepare=replace(handler.prepare, queue=queue))
    return replace(handler, queue=queue)


_PLAN_EXPECTED = (
    "a failure plan: give `retry=` to its handler, or a topology that has a plan for it"
)


def _place_of(handler: AnyHandler) -> str:
    """Return the name of a handler's function with its file and line."""
    if isinstance(handler, PushHandler):
        return f"the push to {handler.target.url}"
    if isinstance(handler, TypedHandlers):
        return ", ".join(map(_place_of, handler.handlers.values()))
    code = getattr(handler.call, "__code__", None)
    name = getattr(handler.call, "__qualname__", repr(handler.call))
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


V = TypeVar("V")


def _unite(given: Iterable[V], own: Iterable[V]) -> tuple[V, ...]:
    """Both, each value once, in order. By equality: arguments are mappings and have no hash."""
    both = list(given)
    both += [one for one in own if one not in both]
    return tuple(both)
