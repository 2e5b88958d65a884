"""The application object: queues with their failure plans, and the handlers of their messages.

Declaring touches no broker. What runs an application (`hopback run`, `Service`, the test kit) asks it
for its topology and its handlers.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from hopback.errors import InvalidTopology, Problem
from hopback.runtime.context import compose, current_context, publish_from_thread
from hopback.runtime.handler import (
    BatchHandler,
    BatchOptions,
    Handler,
    HandlerOptions,
    blames_rows,
    inspect_batch_handler,
    inspect_handler,
)
from hopback.runtime.push import PushHandler, PushTarget
from hopback.topology.durations import parse_duration_ms
from hopback.topology.expand import hardened_queues, recommended_plan, unique_queues
from hopback.topology.feed import feeds_of
from hopback.topology.model import Binding, Exchange, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager
    from typing import Unpack

    from hopback.message import Delivery, Message
    from hopback.policy.breaker import BreakerPolicy
    from hopback.policy.rules import Rule
    from hopback.runtime.context import PublishOptions
    from hopback.topology.feed import Bind
    from hopback.topology.plan import Plan

__all__ = ["AnyHandler", "App", "Waits"]

AnyHandler: TypeAlias = Handler | BatchHandler | PushHandler
F = TypeVar("F", bound="Callable[..., Any]")

Waits: TypeAlias = "Iterable[str | int] | None"
"""The waits after the first, second, … failure; None: the first failure parks."""

_RETRY = ("30s", "5m", "30m")
"""How long failed messages wait when nothing else is said."""


class _Unsaid(Enum):
    """Stands for an option that was not given where None means something."""

    UNSAID = "unsaid"


_UNSAID: Final = _Unsaid.UNSAID


@dataclass(frozen=True, slots=True)
class _Declared:
    """A queue of Hopback's own design, and the exchanges that feed it."""

    plan: Plan
    bindings: tuple[Binding, ...]


class App:
    """Queues, their failure plans and their handlers, under one name.

    A design that exists already (one of the documented patterns, or a TOML file) is given as
    `topology`; queues of Hopback's own, recommended design are added with `queue` or `handler`.
    `lifespan` makes an async context that is entered before the first delivery and left after the
    last: a database, a client, an outbox relay.
    """

    def __init__(
        self,
        name: str = "app",
        *,
        topology: Topology | None = None,
        codes: Mapping[str, str] | None = None,
        lifespan: Callable[[App], AbstractAsyncContextManager[object]] | None = None,
    ) -> None:
        self.name = name
        self.codes: Mapping[str, str] = dict(codes or {})
        """Names of your own for events, as log lines carry them (`DESIGNS["event-bus"].codes`)."""
        self._lifespan = lifespan
        self._given = topology
        self._queues: dict[str, _Declared] = {}
        self._exchanges: dict[str, Exchange] = {}
        self.handlers: dict[str, AnyHandler] = {}
        """What handles each queue, by its name."""
        self._publish: Callable[[Message], Coroutine[Any, Any, None]] | None = None

    # --- declaring -------------------------------------------------------------------------------

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
        self._refuse_second_plan(name)
        tiers_ms = [parse_duration_ms(wait) for wait in retry or ()]
        if retry is not None and not tiers_ms:
            found = Problem("retry", 'waits like ["30s", "5m"], or None for no retry', "no wait")
            raise InvalidTopology((found,), where=f"queue {name!r}")
        plan = recommended_plan(name, tiers_ms=tiers_ms, attempts=attempts)
        bindings: list[Binding] = []
        for feed in feeds_of(bind or {}):
            for exchange in feed.exchanges():
                self._add_exchange(exchange)
            bindings += feed.bindings(name)
        self._queues[name] = _Declared(plan, tuple(bindings))

    def _add_exchange(self, exchange: Exchange) -> None:
        known = self._exchanges.setdefault(exchange.name, exchange)
        if known.type != exchange.type:
            found = Problem(f"exchanges.{exchange.name}", f"a {known.type} exchange", exchange.type)
            raise InvalidTopology((found,), where=f"app {self.name!r}")

    def _refuse_second_plan(self, queue: str) -> None:
        if queue in self._queues or (self._given and self._given.plan(queue) is not None):
            found = Problem(f"queues.{queue}", "one failure plan", "a second one")
            raise InvalidTopology((found,), where=f"app {self.name!r}")

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
        deadline: float | None = None,
        key: Callable[[Delivery], str | None] | None = None,
        breaker: BreakerPolicy | None = None,
    ) -> Callable[[F], F]:
        """Make a function the handler of a queue.

        `retry`, `attempts` and `bind` declare the queue as `queue` does. The rest is how the
        handler runs (see `HandlerOptions`); `rules` say which exceptions park and which retry.
        """
        if retry is not _UNSAID or attempts is not None or bind is not None:
            waits = _RETRY if retry is _UNSAID else retry
            self.queue(queue, retry=waits, attempts=attempts, bind=bind)
        options = HandlerOptions(
            concurrency=concurrency,
            prefetch=prefetch,
            deadline=deadline,
            key=key,
            breaker=breaker,
            rules=tuple(rules),
        )

        def register(call: F) -> F:
            self.add_handler(inspect_handler(queue, call, options))
            return call

        return register

    def batch(
        self,
        queue: str,
        *,
        size: int = 1000,
        wait: str | int = "1s",
        batchers: int = 2,
        prepare: Callable[..., Any] | None = None,
        processors: int = 10,
        isolates: Callable[[Exception], bool] = blames_rows,
        rules: Iterable[Rule] = (),
        deadline: float | None = None,
        breaker: BreakerPolicy | None = None,
        retry: Waits | Literal[_Unsaid.UNSAID] = _UNSAID,
        attempts: int | None = None,
        bind: Bind | None = None,
    ) -> Callable[[F], F]:
        """Make an async function of a list of payloads the batch handler of a queue.

        It returns nothing (all done) or an outcome for each. A batch goes at `size` messages or
        after `wait`; `batchers` run at once. `prepare` is a handler of one message that returns its
        row (or an outcome, if it is not to join a batch); `processors` of them run at once. The
        rest is in `BatchOptions`.
        """
        if retry is not _UNSAID or attempts is not None or bind is not None:
            waits = _RETRY if retry is _UNSAID else retry
            self.queue(queue, retry=waits, attempts=attempts, bind=bind)
        seconds = parse_duration_ms(wait) / 1000
        options = BatchOptions(
            size, seconds, batchers, isolates, tuple(rules), deadline=deadline, breaker=breaker
        )
        each = HandlerOptions(concurrency=processors, rules=tuple(rules))
        preparing = None if prepare is None else inspect_handler(queue, prepare, each)

        def register(call: F) -> F:
            self.add_handler(inspect_batch_handler(queue, call, options, preparing))
            return call

        return register

    def push(
        self,
        queue: str,
        url: str,
        *,
        timeout: float = 10.0,
        concurrency: int = 20,
        breaker: BreakerPolicy | None = None,
    ) -> None:
        """Post each delivery of a queue to a service's endpoint; the HTTP status is its outcome."""
        target = PushTarget(url, timeout, concurrency)
        options = HandlerOptions(concurrency=concurrency, breaker=breaker)
        self.add_handler(PushHandler(queue, target, options))

    def add_handler(self, handler: AnyHandler) -> None:
        """Add a handler; a queue has one, so that each message has one outcome."""
        if handler.queue in self.handlers:
            found = Problem(f"handlers.{handler.queue}", "one handler", "a second one")
            raise InvalidTopology((found,), where=f"app {self.name!r}")
        self.handlers[handler.queue] = handler

    # --- what runs it asks for ---------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """Everything declared, as data. InvalidTopology names handled queues without failure plan."""
        given = self._given or Topology(self.name)
        own = self._queues.values()
        whole = replace(
            given,
            name=self.name,
            exchanges=_united(given.exchanges, self._exchanges.values()),
            queues=unique_queues(
                (*given.queues, *(q for one in own for q in hardened_queues(one.plan)))
            ),
            bindings=_united(given.bindings, (b for one in own for b in one.bindings)),
            plans=_united(given.plans, (one.plan for one in own)),
        )
        unplanned = tuple(queue for queue in self.handlers if whole.plan(queue) is None)
        if unplanned:
            raise InvalidTopology(
                tuple(
                    Problem(f"queues.{queue}", _PLAN_EXPECTED, "no failure plan")
                    for queue in unplanned
                ),
                where=f"app {self.name!r}",
            )
        return whole

    def connected(self, publish: Callable[[Message], Coroutine[Any, Any, None]] | None) -> None:
        """Called by what runs the application: how `publish` reaches the broker from now on."""
        self._publish = publish

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
        return self.send(compose(exchange, routing_key, payload, **options))

    def publish_sync(
        self,
        exchange: str,
        routing_key: str,
        payload: object,
        **options: Unpack[PublishOptions],
    ) -> None:
        """The same from a thread of the application: it returns when the broker has confirmed."""
        publish_from_thread(self.publish(exchange, routing_key, payload, **options))

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
            cause.watch(publishing)
        return publishing


_PLAN_EXPECTED = (
    "a failure plan: give `retry=` to its handler, or a topology that has a plan for it"
)

V = TypeVar("V")


def _united(given: Iterable[V], own: Iterable[V]) -> tuple[V, ...]:
    """Both, each value once, in order. By equality: arguments are mappings and have no hash."""
    both = list(given)
    both += [one for one in own if one not in both]
    return tuple(both)
