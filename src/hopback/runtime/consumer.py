"""Consume a queue.

A consumer runs a series of sessions, each on its own channel. When a session ends, deliveries that
were not started are dropped, because the broker requeues them. Running handlers are allowed to
finish, but their deliveries can no longer be settled. If handlers are slow, or if a paused queue is
resumed before they have finished, the session is retired: its channel stays open until they have
settled their deliveries, while a new session starts on another channel.

Each session starts with a prefetch of 1, which `Intake` increases later. RabbitMQ only reads the
prefetch when a consumer is created, so a change requires a new consumer on the same channel.
Unsettled deliveries are kept, because requeueing them would increment their delivery count. A
delivery in transit would also be requeued if its consumer was cancelled. To avoid this, the
consumer is cancelled before the first delivery is settled. With a prefetch of 1, no other delivery
can be in transit at that point.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hopback.errors import BrokerError
from hopback.policy.breaker import Breaker, BreakerPolicy, BreakerState, after_run, at
from hopback.policy.outcome import Done, Snooze
from hopback.runtime.answer import Answer, ConsumeSession, HeldDelivery
from hopback.runtime.slow_runs import SlowRuns, consumer_timeout_in
from hopback.waiting import first_of, loop_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from hopback.broker.port import Connection, QueueState
    from hopback.message import Delivery
    from hopback.runtime.quarantine import Quarantine
    from hopback.runtime.settling import Environment
    from hopback.runtime.worker import Work

_LOG = logging.getLogger("hopback.runtime")

_CLOSE_S = 2.0
"""Seconds to wait for the broker to confirm that a channel is closed. A broker that does not answer must not
delay the shutdown."""

_LOOK_S = 0.1
"""Seconds between two checks whether the circuit breaker and the rate limit allow a message to start."""


class Intake:
    """The subscription of a session.

    Args:
        quarantine: If None, no message is treated as suspected and the prefetch is not reduced at the start.
        give_up: Called with a reason when the session can no longer receive deliveries.
        on_cancel: Called when the broker cancels the consumer.
    """

    def __init__(
        self,
        session: ConsumeSession,
        queue: str,
        prefetch: int,
        work: Work,
        quarantine: Quarantine | None,
        slow_runs: SlowRuns,
        give_up: Callable[[str], object],
        on_cancel: Callable[[], object],
    ) -> None:
        self._session = session
        self._queue = queue
        self._prefetch = prefetch
        self._work = work
        self._quarantine = quarantine
        self._slow_runs = slow_runs
        self._give_up = give_up
        self._on_cancel = on_cancel
        self._open = quarantine is None or prefetch == 1
        self._suspected: deque[HeldDelivery] = deque()
        self._before_opening: list[HeldDelivery] = []
        """Deliveries that were received before the prefetch was increased."""
        self._tag: str | None = None
        self._stopped = False
        self._changing = asyncio.Lock()
        """Held while the subscription is being changed."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.isolating: bool = False
        """True while suspected messages are handled."""
        self.received: int = 0

    @property
    def is_taking(self) -> bool:
        """Whether deliveries are received now, or will be once suspected messages have been
        handled.
        """
        return not self._stopped and (self._tag is not None or self.isolating)

    async def start(self) -> None:
        await self._subscribe(self._prefetch if self._open else 1)

    def refuse(self) -> None:
        """Don't subscribe any more. An existing subscription is cancelled by `stop`."""
        self._stopped = True

    async def stop(self) -> int:
        """Stop receiving deliveries.

        Returns the number of suspected messages that were never started.
        """
        self.refuse()
        async with self._changing:
            tag, self._tag = self._tag, None
            if tag is not None:
                with suppress(BrokerError):
                    await self._session.channel.cancel(tag)
        # This includes deliveries that arrived before the consumer was cancelled.
        left = [*self._suspected, *self._before_opening]
        self._suspected.clear()
        self._before_opening.clear()
        _requeue(left)
        return len(left)

    def end(self) -> None:
        """End the session and cancel its tasks."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    async def _subscribe(self, prefetch: int) -> None:
        """Replace the current subscription with one that uses a different prefetch."""
        channel = self._session.channel
        async with self._changing:
            if not self._may_subscribe(prefetch):  # changed while waiting for the lock
                return
            await channel.qos(prefetch)
            if not self._may_subscribe(prefetch):
                return
            before = self._tag
            self._tag = await channel.consume(
                self._queue, self._on_delivery, on_cancel=self._end_intake
            )
            if before is not None:
                await channel.cancel(before)

    def _may_subscribe(self, prefetch: int) -> bool:
        return not self._stopped and (prefetch == 1 or self._open)

    def _end_intake(self, tag: str) -> None:
        if tag == self._tag:
            self._tag = None
            self._on_cancel()

    def _on_delivery(self, delivery: Delivery) -> None:
        self.received += 1
        taken = HeldDelivery(delivery, self._session)
        # Keeps a handler from publishing after its channel was closed.
        delivery.session_ended = self._session.ended  # type: ignore[attr-defined]
        if self._slow_runs.expects_returns:
            answer = self._slow_runs.answer_to_return(taken)
            if answer is not None:
                self._work.conclude(taken, answer)
                return
        if (
            delivery.redelivered
            and self._quarantine is not None
            and self._quarantine.suspects(delivery)
        ):
            self._suspected.append(taken)
            if not self.isolating and not self._stopped:
                self.isolating = True
                self._begin(self._isolate(self._quarantine))
            return
        if not self._open:
            self._open = True
            self._before_opening.append(taken)
            self._begin(self._open_window())
        elif self._before_opening:
            self._before_opening.append(taken)
        else:
            self._work.submit(taken)

    async def _open_window(self) -> None:
        with suppress(BrokerError):  # the channel was closed
            await self._subscribe(self._prefetch)
        if self._stopped:
            return  # `stop` requeues them
        for taken in self._before_opening:
            self._work.submit(taken)
        self._before_opening.clear()

    async def _close_window(self) -> None:
        async with self._changing:
            tag, self._tag = self._tag, None
            if tag is not None:
                await self._session.channel.cancel(tag)
            self._open = False

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _isolate(self, quarantine: Quarantine) -> None:
        """Handle suspected messages one by one, after all other handlers have finished."""
        is_closed = False
        try:
            while self._suspected and not (self._stopped or self._session.ended.is_set()):
                if self._open and self._prefetch != 1:
                    await self._close_window()
                    is_closed = True
                drained = await quarantine.drain(self._work)
                # Other queues are paused while the message is handled, so it must start at once.
                await self._wait_until_due()
                if not self._stopped:  # may have been stopped in the meantime
                    await quarantine.run(self._suspected.popleft(), self._work, drained=drained)
                if is_closed and not self._suspected:
                    is_closed = False
                    await self._subscribe(1)  # may receive another suspected message
        except BrokerError:
            return  # the channel was closed
        except Exception:
            _LOG.exception("suspected messages of %s could not be handled apart", self._queue)
            self._give_up("an error beside its handler")
        finally:
            self.isolating = False

    async def _wait_until_due(self) -> None:
        """Wait until the circuit breaker and the rate limit allow a message to start."""
        while not (self._stopped or self._work.may_start):  # noqa: ASYNC110 - no event for both
            await asyncio.sleep(_LOOK_S)


class Tell(Protocol):
    def __call__(self, name: str, reason: str, **more: float | str | None) -> None:
        """Emit an event."""


class Brake:
    """Pauses and resumes a queue based on the state of its circuit breaker."""

    def __init__(self, policy: BreakerPolicy | None, concurrency: int, tell: Tell) -> None:
        self._policy = policy
        self._concurrency = concurrency
        self._tell = tell
        self._limit: Callable[[int], None] = lambda _size: None
        self._breaker = Breaker()
        self._probing: asyncio.TimerHandle | None = None
        self._time = loop_time

    def control(self, limit: Callable[[int], None]) -> None:
        """Set the function that is called to limit concurrency."""
        self._limit = limit

    @property
    def state(self) -> BreakerState:
        return self._breaker.state

    @property
    def is_closed(self) -> bool:
        """Whether the breaker is closed."""
        return self._breaker.state is BreakerState.CLOSED

    def observe(self, answer: Answer) -> None:
        """Record the result of a run, and pause or resume the queue if the breaker changes state."""
        if self._policy is None or not answer.ran:
            return
        now, before = self._time(), self._breaker.state
        failed = not isinstance(answer.outcome, Done | Snooze)
        self._breaker = after_run(self._breaker, self._policy, failed=failed, now=now)
        if self._breaker.state is before:
            return
        if self._breaker.state is BreakerState.OPEN:
            self._limit(0)
            self._probing = asyncio.get_running_loop().call_at(self._breaker.until, self._probe)
            until = self._breaker.until - now
            self._tell("consumer.paused", "everything fails", by="breaker", until=until)
        else:
            self._limit(self._concurrency)
            self._tell("consumer.resumed", "a probe worked", by="breaker")

    def _probe(self) -> None:
        """Let a few messages through after the cool-down."""
        # A timer may fire slightly early. The breaker would then stay open.
        self._breaker = at(self._breaker, max(self._time(), self._breaker.until))
        if self._policy is not None:
            self._limit(self._policy.probes)

    def release(self) -> None:
        if self._probing is not None:
            self._probing.cancel()


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """Limits of a consumer."""

    prefetch: int
    concurrency: int
    breaker: BreakerPolicy | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """The deliveries that a closed consumer left unsettled. The broker redelivers them.

    `kept` counts the deliveries that could not be settled or moved.
    """

    queue: str
    not_started: int
    interrupted: int
    kept: int = 0


class ConsumerState(StrEnum):
    STARTING = "starting"
    """There is no channel yet, or it is being reopened."""
    CONSUMING = "consuming"
    PAUSED = "paused"
    """Paused by a command. See `Consumer.breaker` for the circuit breaker."""
    CLOSED = "closed"


class _Ending(NamedTuple):
    """Why a session ended, and how to continue."""

    reason: str
    lost: bool
    moves: bool = False


class Consumer:
    """Consumes a queue until it is closed."""

    def __init__(
        self,
        queue: str,
        limits: ConsumerLimits,
        make_work: Callable[[Callable[[Answer], object]], Work],
        environment: Environment,
        quarantine: Quarantine | None,
        make_slow_runs: Callable[[Work], SlowRuns],
        *,
        single_active: bool = False,
    ) -> None:
        self.queue = queue
        self._limits = limits
        self._single_active = single_active
        self._environment = environment
        self._quarantine = quarantine
        self._brake = Brake(limits.breaker, limits.concurrency, self._tell)
        self._work = make_work(self._brake.observe)
        self._brake.control(self._work.limit)
        self.slow_runs: SlowRuns = make_slow_runs(self._work)
        self._time = loop_time
        self._session: ConsumeSession | None = None
        self.retired: dict[ConsumeSession, asyncio.Future[BrokerError | None]] = {}
        """Retired sessions, with a future that is done when the channel is closed."""
        self._closing_channels: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Future[_Ending] | None = None
        self._intake: Intake | None = None
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._resting = asyncio.Event()
        self._resting.set()
        self._closing = False
        self._not_started = 0
        """Number of deliveries that were dropped by the shutdown."""
        self._received = 0
        """Number of deliveries received in previous sessions."""
        self._seen = -1
        self.trouble: str = ""
        """The reason why the queue cannot be consumed, or an empty string."""
        self.started: asyncio.Event = asyncio.Event()
        """Set when the consumer has started or was paused."""

    @property
    def settled_count(self) -> int:
        """How many deliveries were settled."""
        return self._work.settled_count

    @property
    def state(self) -> ConsumerState:
        if self._closing:
            return ConsumerState.CLOSED
        if not self._wanted.is_set():
            return ConsumerState.PAUSED
        return ConsumerState.CONSUMING if self.is_consuming else ConsumerState.STARTING

    @property
    def is_consuming(self) -> bool:
        """Whether there is an active subscription."""
        return self._intake is not None and self._intake.is_taking

    @property
    def in_flight(self) -> int:
        """How many deliveries are being handled."""
        return self._work.in_flight

    @property
    def held_count(self) -> int:
        """How many deliveries cannot be moved or settled at the moment."""
        return self._work.held_count + self._work.kept_count

    @property
    def kept_count(self) -> int:
        """How many deliveries could not be settled or moved."""
        return self._work.kept_count

    @property
    def standstill(self) -> str:
        """Why held deliveries prevent further messages from being handled. Empty if they don't."""
        full = self._work.stuck_count >= self._limits.concurrency
        if full or 0 < self._limits.prefetch <= self.held_count:
            return self._work.trouble or "they cannot be settled safely"
        return ""

    @property
    def stuck_runs(self) -> str:
        """Describes the stuck handlers if they occupy all workers. Empty otherwise."""
        full = len(self.slow_runs.stuck) >= self._limits.concurrency
        return self.slow_runs.names() if full else ""

    def look(self) -> None:
        """Check for slow handlers, and close retired channels that are no longer in use."""
        self.slow_runs.look()
        self._close_retired([one for one in self.retired if not self._work.holds(one)])
        intake = self._intake
        if intake is None or not intake.is_taking or intake.isolating or self._closing:
            return
        runs = self.slow_runs.slow
        if any(taken.session is self._session for run in runs for taken in run.deliveries):
            self._give_up(_Ending("a handler is slow", lost=False, moves=True))

    def _close_retired(self, sessions: Iterable[ConsumeSession]) -> None:
        for session in sessions:
            self.retired.pop(session)
            session.ended.set()
            closing = asyncio.ensure_future(_close(session))
            self._closing_channels.add(closing)
            closing.add_done_callback(self._closing_channels.discard)

    @property
    def breaker(self) -> BreakerState:
        return self._brake.state

    async def serve(
        self, connection: Connection, usable: Callable[[str, Connection, float], Awaitable[str]]
    ) -> None:
        """Consume until the connection is closed. A channel that is closed is replaced.

        `usable` is called before each session. It returns a reason if the queue cannot be consumed,
        and may restore a deleted queue.
        """
        failures, lost_at = 0, float("-inf")
        while True:
            await self._wanted.wait()
            if self._closing:
                return
            known, self.trouble = self.trouble, await usable(self.queue, connection, lost_at)
            if self.trouble:
                failures, lost_at = failures + 1, self._time()
                if self.trouble != known:
                    self._tell("consumer.lost", self.trouble)
                await asyncio.sleep(
                    self._environment.backoff.delay(failures, self._environment.chance())
                )
                continue
            if not self._wanted.is_set() or self._closing:
                continue  # closed or paused in the meantime
            began = self._time()
            ending = await self._serve_once(connection)
            if not ending.lost or self._closing:
                continue
            self._tell("consumer.lost", ending.reason)
            lost_at = self._time()
            stable = lost_at - began >= self._environment.backoff.stable
            failures = 1 if stable else failures + 1
            await asyncio.sleep(
                self._environment.backoff.delay(failures, self._environment.chance())
            )

    async def _serve_once(self, connection: Connection) -> _Ending:
        """Run one session and return why it ended."""
        self._resting.clear()
        self._ending = asyncio.get_running_loop().create_future()
        session: ConsumeSession | None = None
        closed: asyncio.Future[BrokerError | None] | None = None
        try:
            session = ConsumeSession(await connection.open_channel(), connection.version)
            if self._closing or self._ending.done():  # closed or paused in the meantime
                return _Ending("not started", lost=False)
            self._session = session
            closed = asyncio.ensure_future(session.channel.wait_closed())
            closed.add_done_callback(partial(self._on_closed, session))
            ending = await self._consume(session, self._ending)
            await self._stop_taking()
            stays = (ending.lost or ending.moves) and not session.ended.is_set()
            if not stays:
                _requeue(self._work.withdraw())
                await first_of(self._work.finish(), session.ended.wait(), self._wanted.wait())
                stays = self._has_runs(session)  # the queue was resumed before they finished
            if stays:
                # Deliveries can still be settled on this channel.
                self.retired[session] = closed
                self._session = None
            return ending
        except BrokerError as error:
            return _Ending(str(error), lost=True)
        finally:
            intake, self._intake = self._intake, None
            if intake is not None:
                self._received += intake.received
                intake.end()
            if session is not None and session not in self.retired:
                session.ended.set()
                _requeue(self._work.withdraw())  # some may belong to retired sessions
                if closed is not None:
                    closed.cancel()
            self._resting.set()
            if session is not None and session not in self.retired:
                await _close(session)

    async def _consume(self, session: ConsumeSession, ending: asyncio.Future[_Ending]) -> _Ending:
        self._intake = Intake(
            session,
            self.queue,
            self._limits.prefetch,
            self._work,
            self._quarantine,
            self.slow_runs,
            self.restore,
            partial(self._on_cancel, session),
        )
        await self._intake.start()
        self.started.set()
        self._environment.bus.emit(
            "consumer.started",
            {
                "queue": self.queue,
                "prefetch": self._limits.prefetch,
                "concurrency": self._limits.concurrency,
            },
        )
        return await ending

    def _has_runs(self, session: ConsumeSession) -> bool:
        """Whether handlers are running that can still settle their deliveries."""
        deliveries = (taken for run in self._work.runs() for taken in run.deliveries)
        return not session.ended.is_set() and any(one.session is session for one in deliveries)

    def restore(self, reason: str) -> None:
        """Start a new session."""
        self._give_up(_Ending(reason, lost=True))

    def _give_up(self, ending: _Ending) -> None:
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(ending)

    def _on_closed(
        self, session: ConsumeSession, closed: asyncio.Future[BrokerError | None]
    ) -> None:
        if closed.cancelled():
            return
        error = closed.result()
        session.ended.set()
        self.retired.pop(session, None)
        timeout = consumer_timeout_in(error)
        if timeout is not None:
            self.slow_runs.on_timeout(session, timeout)
        if session is self._session:
            self.restore(str(error or "the channel was closed"))

    def _on_cancel(self, session: ConsumeSession) -> None:
        self.slow_runs.on_cancel(session)
        self.restore("the broker cancelled the consumer")

    def looks_forgotten(self, queue: QueueState) -> bool:
        """Return True if the broker seems to have forgotten this consumer.

        This is the case if the queue has no consumers at all, or if messages are ready although this
        consumer has been idle since the last check. With a single active consumer, the others are
        always idle.
        """
        intake = self._intake
        received = self._received + (0 if intake is None else intake.received)
        seen, self._seen = self._seen, received
        if not self.is_consuming or (intake is not None and intake.isolating):
            return False
        session = self._session
        in_hand = session is not None and self._work.holds(session)
        busy = self._work.in_flight or self._work.kept_count or in_hand
        idle = seen == received and not busy
        due = not self._single_active and self._brake.is_closed
        return queue.consumers == 0 or (queue.messages > 0 and idle and due)

    def _tell(self, name: str, reason: str, **more: Any) -> None:
        self._environment.bus.emit(name, {"queue": self.queue, "reason": reason, **more})

    def pause(self, reason: str) -> None:
        """Stop receiving deliveries. Running handlers finish, and all other deliveries are
        requeued.
        """
        if self._wanted.is_set() and not self._closing:
            self._wanted.clear()
            self.started.set()
            self._tell("consumer.paused", reason, by="command", until=None)
            self._give_up(_Ending(reason, lost=False))
            if self._intake is not None:
                self._intake.refuse()
            else:  # only retired sessions have deliveries
                _requeue(self._work.withdraw())

    async def wait_paused(self) -> None:
        """Wait until the consumer is paused and all handlers have finished."""
        await self._resting.wait()

    def resume(self, reason: str) -> None:
        if not self._wanted.is_set():
            self._wanted.set()
            self._tell("consumer.resumed", reason, by="command")

    async def stop_intake(self) -> None:
        """Stop receiving deliveries and starting handlers."""
        self._closing = True
        self._wanted.set()
        # If the broker does not answer, no further handler may start while this waits for it.
        self._not_started += self._work.wind_down()
        self._not_started += await self._stop_taking()
        self._not_started += self._work.wind_down()

    async def _stop_taking(self) -> int:
        return 0 if self._intake is None else await self._intake.stop()

    async def finish(self) -> None:
        """Wait until no handler is running."""
        await self._work.finish()

    async def flush(self) -> None:
        """Handle the open batch."""
        await self._work.flush()

    async def close(self) -> Leftover:
        """Interrupt running handlers and end the session. Returns the deliveries that are still
        unsettled.
        """
        self._closing = True
        self._brake.release()
        kept = self._work.kept_count
        for session in (*self.retired, *filter(None, [self._session])):
            session.ended.set()
        interrupted = await self._work.stop()
        self._not_started += len(self._work.withdraw())
        self._give_up(_Ending("closed", lost=False))
        self._close_retired(tuple(self.retired))
        return Leftover(self.queue, self._not_started, interrupted, kept)


def _requeue(deliveries: Iterable[HeldDelivery]) -> None:
    """Requeue deliveries that were not started, because their channel may stay open."""
    for taken in sorted(deliveries, key=lambda taken: taken.delivery.tag):
        with suppress(BrokerError):  # closing the channel has requeued it
            taken.session.channel.nack(taken.delivery.tag, requeue=True)


async def _close(session: ConsumeSession) -> None:
    with suppress(BrokerError, TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await session.channel.close()
