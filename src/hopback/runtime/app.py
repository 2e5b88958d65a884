"""Applications and routers.

Creating an application does not connect to the broker. Applications are run by `hopback run`,
`Service` or the test kit.
"""

# ruff: noqa: SLF001 - routers access private attributes of other routers

from __future__ import annotations

from collections.abc import Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
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
from hopback.runtime.codecs import Codecs
from hopback.runtime.context import (
    REQUEST_TIMEOUT,
    PublishOptions,
    compose,
    current_context,
    require_loop,
    send_from_loop,
    send_from_thread,
    watch_publish,
)
from hopback.runtime.delays import Cancellations, DueMessages
from hopback.runtime.dependencies import Need, Scope, check_overrides, needs_of
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
from hopback.text import did_you_mean
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
        Sequence,
    )
    from datetime import timedelta

    from hopback.fields import FieldValue
    from hopback.message import Delivery, Message
    from hopback.policy.breaker import BreakerPolicy
    from hopback.runtime.dependencies import Overrides, Provider
    from hopback.runtime.failures import OnError
    from hopback.runtime.service import Service
    from hopback.topology.plan import Plan

AnyHandler: TypeAlias = Handler | BatchHandler | PushHandler | TypedHandlers
H = TypeVar("H", bound="Callable[..., Outcome | Awaitable[Outcome | None] | None]")
F = TypeVar("F", bound="Callable[..., Any]")
R = TypeVar("R")
B = TypeVar("B", bound="Callable[..., Awaitable[Sequence[Outcome | None] | None]]")
M = TypeVar("M", bound="Middleware")

# Split into two parts, because pyright does not support implicitly concatenated strings here.
_MixedWaits: TypeAlias = "list[str | int] | list[Duration] | tuple[Duration, ...]"
Waits: TypeAlias = "list[str] | list[int] | list[float] | list[timedelta] | _MixedWaits | None"
"""The delays after the first, second, … failure. None disables retries.

This is not an `Iterable`, because strings are iterable and `retry="30s"` would be accepted.
"""

_ONE_PLAN = (
    "one failure plan: one handler per queue, or `message_type=` for each and `retry=` for one"
)
_RETRY = ("30s", "5m", "30m")
"""The default retry delays."""


class _NotGiven(Enum):
    """A sentinel for options that were not passed."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return "<not given>"  # shown by `help(app.handler)`


_NOT_GIVEN: Final = _NotGiven.NOT_GIVEN


class _HowHandled(TypedDict, total=False):
    retry: Waits | _NotGiven
    attempts: int | None
    bind: Bind | None
    rules: Iterable[Rule]
    concurrency: int
    prefetch: int | None
    deadline: Duration | None
    key: Callable[[Delivery], FieldValue] | None
    breaker: BreakerPolicy | None
    message_type: str | None
    rate: str | None
    publishes: Iterable[Output]


@dataclass(frozen=True, slots=True)
class _Declared:
    """The declaration of a queue."""

    tiers_ms: tuple[int, ...]
    attempts: int | None
    feeds: tuple[Feed, ...]

    def plan(self, queue: str) -> Plan:
        return recommend_plan(queue, tiers_ms=self.tiers_ms, attempts=self.attempts)

    def bindings(self, queue: str) -> Iterator[Binding]:
        for feed in self.feeds:
            yield from feed.bindings(queue)


class Router:
    """A group of queues and handlers that can be included in an application.

    `prefix` is added to the names of all queues. Middleware of a router only applies to its own
    handlers, and runs inside the middleware of the application.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.handlers: dict[str, AnyHandler] = {}
        """Handlers by queue name."""
        self._queues: dict[str, _Declared] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._middleware: list[Middleware] = []
        self._within: dict[str, tuple[Router, ...]] = {}
        self._types: dict[str, tuple[TypeOf, Outcome | None]] = {}
        self.periodic: dict[str, Periodic] = {}
        """Periodic messages by queue name."""
        self._parents: list[Router] = []

    @property
    def is_included(self) -> bool:
        """Whether the router was included in an application or another router."""
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
        """Declare a queue with retry queues and a dead-letter queue.

        Args:
            name: The name of the queue.
            retry: The retry delays, such as `["30s", "5m"]`. The last one is used for all further
                attempts. None disables retries.
            attempts: Maximum number of attempts.
            bind: Maps topic exchanges to routing keys. Can also be one or more `Feed` objects.
        """
        require_queue_name("queue", name)
        where = f"queue {self.prefix + name!r}"
        tiers_ms = tuple(waits_ms(() if retry is None else retry, where=where))
        if retry is not None and not tiers_ms:
            found = Problem("retry", 'waits like ["30s", "5m"], or None for no retry', "no wait")
            raise InvalidDeclaration((found,), where=where)
        with locate_errors(where):
            declared = _Declared(tiers_ms, attempts, feeds_of(bind or {}))
            declared.plan(self.prefix + name)  # check the plan
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
            first = "`app.queue`" if known is None else _place_of(known)
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
        retry: Waits | _NotGiven = _NOT_GIVEN,
        attempts: int | None = None,
        bind: Bind | None = None,
        rules: Iterable[Rule] = (),
        concurrency: int = 10,
        prefetch: int | None = None,
        deadline: Duration | None = None,
        key: Callable[[Delivery], FieldValue] | None = None,
        breaker: BreakerPolicy | None = None,
        message_type: str | None = None,
        rate: str | None = None,
        publishes: Iterable[Output] = (),
        replies: bool = False,
    ) -> Callable[[F], F]:
        """Register a handler for a queue, or for messages of a certain type.

        `retry`, `attempts` and `bind` declare the queue, see `queue`. See `HandlerOptions` for
        `concurrency`, `prefetch`, `deadline`, `key` and `breaker`.

        Args:
            queue: The name of the queue.
            rules: Rules for handling exceptions.
            message_type: Only handle messages of this type.
            rate: Maximum number of messages per second and process, such as `"100/s"`.
            publishes: Messages published by the handler. Only used for AsyncAPI documents.
            replies: If True, the return value is sent as a reply, unless it is an outcome.
        """
        require_queue_name("handler", queue)
        if retry is not _NOT_GIVEN or attempts is not None or bind is not None:
            waits = _RETRY if retry is _NOT_GIVEN else retry
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
        outputs = tuple(publishes)
        anything: tuple[object, ...] = outputs
        for number, given in enumerate(anything):
            if not isinstance(given, Output):
                expected = 'an Output, as in `publishes=[Output("invoices", Invoice)]`'
                found = Problem(f"publishes[{number}]", expected, repr(given))
                raise InvalidDeclaration((found,), where=where)

        def register(call: F) -> F:
            handler = inspect_handler(queue, call, options, replies=replies)
            handler = replace(handler, publishes=outputs)
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
        """Configure how the type of a message is determined.

        Args:
            queue: The name of the queue.
            type_of: A function that returns the type of a message, such as `by_property`,
                `by_header(name)` or `by_cloudevents`.
            unhandled: The outcome for messages without a matching handler. They are dead-lettered
                by default.
        """
        queue = self.prefix + queue
        given: object = type_of
        if not callable(given):
            found = Problem("type_of", 'a function, as in `by_header("type")`', repr(type_of))
            raise InvalidDeclaration((found,), where=f"types of queue {queue!r}")
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
        retry: Waits | _NotGiven = _NOT_GIVEN,
        attempts: int | None = None,
        bind: Bind | None = None,
    ) -> Callable[[B], B]:
        """Register an async function that handles messages in batches.

        The function is called with a list of payloads. It returns None if all messages were
        handled, or a list with one outcome per message. See `BatchOptions` for the other options.

        Args:
            queue: The name of the queue.
            size: Maximum number of messages in a batch.
            wait: Maximum time to wait for a batch to fill up.
            batchers: Maximum number of batches that are handled concurrently.
            prepare: A function that is called for each message. Its return value replaces the
                payload. If it returns an outcome, the message is not added to a batch.
            processors: Maximum number of concurrent calls of `prepare`.
        """
        require_queue_name("batch", queue)
        if retry is not _NOT_GIVEN or attempts is not None or bind is not None:
            waits = _RETRY if retry is _NOT_GIVEN else retry
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
        """Register a function that is called periodically, in one of the processes.

        Each call is a message in a queue, so it is retried like other messages. The message id
        consists of the name and the time. The function may take a `PeriodicMessage`, a `Context`,
        both or no arguments.

        Args:
            period: The interval between calls.
            cron: A cron expression.
            timezone: The time zone of the cron expression.
            name: The name of the queue. Defaults to the name of the function.
            missed: What to do with calls that were due while no process was running: `once`, `skip`
                or `each`.
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
        """Send the messages of a queue to an HTTP endpoint. The outcome depends on the response
        status.

        Args:
            queue: The name of the queue.
            url: The URL of the endpoint.
            timeout: Timeout of a request.
            concurrency: Maximum number of concurrent requests.
            breaker: Circuit breaker settings.
            headers: Additional request headers.
            bearer: A token for the `Authorization` header.
            secret: If set, requests are signed (`x-hopback-signature`).
        """
        target = PushTarget(url, timeout, concurrency, headers or {}, bearer, secret)
        self.push_to(queue, target, breaker=breaker)

    def push_to(
        self, queue: str, target: PushTarget, *, breaker: BreakerPolicy | None = None
    ) -> None:
        """Send the messages of a queue to a target. See `push`."""
        options = HandlerOptions(concurrency=target.connections, breaker=breaker)
        self.add_handler(PushHandler(self.prefix + queue, target, options))

    def add_handler(self, handler: AnyHandler) -> None:
        """Add a handler. A queue can only have one."""
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
        """Add a middleware. The first one is the outermost.

        Middleware is an async function with the arguments `context` and `run`.
        """
        check_middleware(call)
        self._middleware.append(call)
        return call

    def include(self, *routers: Router) -> None:
        """Include the queues and handlers of other routers, including those added later."""
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
        """Return the middleware that applies to a queue, outermost first."""
        if queue == DUE:
            return ()  # middleware runs when the message is handled, not when it is forwarded
        inner = (one for router in self._within.get(queue, ()) for one in router._middleware)
        return (*self._middleware, *inner)


class App(Router):
    """An application: queues, failure plans and handlers.

    Args:
        name: The name of the application.
        topology: An existing topology, for example a design or a TOML file.
        lifespan: An async context manager that is entered before the first message and left after
            the last one. It is called with the application, and can use dependencies with the scope
            `application`.
        reply_queues: Names of queues that replies may be sent to, in addition to direct reply-to.
            `*` matches any characters.
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
        given: object = codecs
        if given is not None and not isinstance(given, Codecs):
            found = Problem("codecs", "Codecs, as in `Codecs(MsgpackCodec())`", repr(codecs))
            raise InvalidDeclaration((found,), where="App")
        if isinstance(reply_queues, str):
            found = Problem("reply_queues", "a list of queue names", repr(reply_queues))
            raise InvalidDeclaration((found,), where="App")
        self.reply_queues: tuple[str, ...] = tuple(reply_queues)
        """Queues that replies may be sent to, in addition to direct reply-to."""
        self.codes: Mapping[str, str] = dict(codes or {})
        """Custom names of logged events, such as `DESIGNS["event-bus"].codes`."""
        self.codecs = codecs
        """Codecs by content type. If None, JSON is used unless the type requires something else."""
        self._lifespan = lifespan
        self.lifespan_needs: tuple[Need, ...] = ()
        """Dependencies of the lifespan."""
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
        self.longest_delay: Duration | None = None
        """The longest delay as declared by `delays`."""
        self._running: Service | None = None
        self.overrides: dict[Provider, Provider] = {}
        """Replaced providers."""
        self.error_reports: list[OnError] = []
        """Functions that are called with the exception of each failed run."""

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
        """Declare the queues for delayed messages.

        Due messages are forwarded by the processes of this application. If no process is running,
        they wait in `hopback.delay.due`. If a message cannot be forwarded, it is retried and
        finally moved to `hopback.delay.due.dlq`.

        Args:
            longest: The maximum delay.
            cancellations: Stores cancelled messages, such as `hopback.store.DelayedMessages`. It
                must be the same in all applications that forward messages.
        """
        read_seconds(longest, "longest", where=f"{self._where}.delays")
        if self._delays is None:
            self._due = DueMessages(self.send, lambda: self.running_service)
            self.add_handler(
                inspect_handler(DUE, self._due.send_on, HandlerOptions(concurrency=50))
            )
        self._due.cancellations = cancellations or self._due.cancellations
        self._delays = delay_topology(longest)
        self.longest_delay = longest

    @overload
    def override(
        self, provider: Provider, replacement: Provider
    ) -> AbstractContextManager[None]: ...

    @overload
    def override(self, provider: Overrides) -> AbstractContextManager[None]: ...

    def override(
        self, provider: Provider | Overrides, replacement: Provider | None = None
    ) -> AbstractContextManager[None]:
        """Replace one provider, or several given as a dict, within this context. Used in tests.

        Services that start in this context use the replacements.
        """
        if isinstance(provider, Mapping):
            return self._override(provider)
        if replacement is None:
            expected = "a provider and its replacement, or a dict of them"
            found = Problem("override", expected, repr(provider))
            raise InvalidDeclaration((found,), where=self._where)
        return self._override({provider: replacement})

    @contextmanager
    def _override(self, replaced: Overrides) -> Iterator[None]:
        before = self.overrides
        after = {**before, **replaced}
        check_overrides(after, self._all_needs(), where=self._where)
        self.overrides = after
        try:
            yield
        finally:
            self.overrides = before

    def _all_needs(self) -> Iterator[Need]:
        yield from self.lifespan_needs
        for handler in self.handlers.values():
            if isinstance(handler, TypedHandlers):
                for one in handler.handlers.values():
                    yield from one.needs
            elif isinstance(handler, Handler | BatchHandler):
                yield from handler.needs
            if isinstance(handler, BatchHandler) and handler.prepare is not None:
                yield from handler.prepare.needs

    @property
    def topology(self) -> Topology:
        """The topology of the application.

        Raises InvalidDeclaration if a handled queue has no plan.
        """
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
                    Problem(
                        f"queues.{queue}",
                        _PLAN_EXPECTED,
                        f"no failure plan{did_you_mean(queue, {*self._queues} - {*self.handlers})}",
                    )
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
        """Set the function that publishes messages. The service calls this when it starts."""
        self._publish = publish
        self._running = service

    @property
    def running_service(self) -> Service:
        """The service that runs this application. Raises RuntimeError if it is not running."""
        if self._running is None:
            raise RuntimeError(
                f"app {self.name!r} is not running: expected to be asked in its lifespan"
            )
        return self._running

    def on_error(self, report: OnError) -> OnError:
        """Register a function that is called with the exception and context of each failed run.

        This is useful for error trackers. The function does not affect how the message is handled.
        It is called on the event loop and must not block. Can be used as a decorator.
        """
        given: object = report
        if not callable(given):
            found = Problem("on_error", "a function", repr(report))
            raise InvalidDeclaration((found,), where=f"app {self.name!r}")
        if iscoroutinefunction(report):
            found = Problem(
                "on_error", "a function that is not async", f"async def {report.__name__}"
            )
            raise InvalidDeclaration((found,), where=f"app {self.name!r}")
        self.error_reports.append(report)
        return report

    @property
    def has_lifespan(self) -> bool:
        return self._lifespan is not None

    def lifespan(self, **values: Any) -> AbstractAsyncContextManager[object]:
        if self._lifespan is None:
            return nullcontext()
        opened: object = self._lifespan(self, **values)
        if not isinstance(opened, AbstractAsyncContextManager):
            expected = "a function that returns an async context manager"
            found = Problem("lifespan", expected, f"one that returns {opened!r}")
            raise InvalidDeclaration((found,), where=self._where)
        return opened

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

        The message is published to the queue `routing_key` unless an exchange is given. If this is
        called in a handler, the correlation id and trace are taken from its message. Must be
        awaited. Use `publish_sync` in sync handlers.

        Raises:
            PublishFailed: If the message is not confirmed.
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
        """Publish a message from a thread and wait for the confirm."""
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
        """Send a request and wait for the reply. Must be awaited. See `RequestClient`.

        Raises:
            NoReply: If there is no reply within `timeout`.
        """
        require_loop("await app.request(…)")
        client = self.running_service.requests
        return client.request_with(
            self.codecs, routing_key, payload, exchange, timeout, returns, options
        )

    def send(self, message: Message) -> Coroutine[Any, Any, None]:
        """Publish a message created with `compose` and wait for the confirm. Must be awaited."""
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
    """Return a copy of the handler for a queue with a different name."""
    if isinstance(handler, TypedHandlers):
        return handler.with_queue(queue)
    if isinstance(handler, BatchHandler) and handler.prepare is not None:
        return replace(handler, queue=queue, prepare=replace(handler.prepare, queue=queue))
    return replace(handler, queue=queue)


_PLAN_EXPECTED = (
    "a failure plan: give `retry=` to its handler, or a topology that has a plan for it"
)


def _place_of(handler: AnyHandler) -> str:
    """Return the name, file and line of a handler."""
    if isinstance(handler, PushHandler):
        return f"the push to {handler.target.url}"
    if isinstance(handler, TypedHandlers):
        return ", ".join(map(_place_of, handler.handlers.values()))
    code = getattr(handler.call, "__code__", None)
    name = getattr(handler.call, "__qualname__", repr(handler.call))
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


V = TypeVar("V")


def _unite(given: Iterable[V], own: Iterable[V]) -> tuple[V, ...]:
    """Merge two sequences and drop duplicates. The values don't have to be hashable."""
    both = list(given)
    both += [one for one in own if one not in both]
    return tuple(both)
