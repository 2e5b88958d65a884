"""One queue's consumer: it takes deliveries on a channel and passes them to their work.

A consumer outlives its channels. Each channel is a session. When a session ends, deliveries that
were not started are dropped, because the broker has requeued them. Runs in progress finish and can
no longer be settled. A session with slow runs is *retired*: its channel takes no more deliveries
and stays open for its unsettled ones, while the next session consumes on another channel.

A session's `Intake` takes one delivery at a time at first, then as many as the prefetch allows. A
broker applies the prefetch to a consumer only when it subscribes. Changing the window therefore
needs a new subscription on the same channel. Unsettled deliveries are kept meanwhile, because
requeueing them would increase their delivery count. The same applies to a delivery in transit: a
quorum queue requeues it when its consumer is cancelled, and later messages overtake it. The first
delivery is therefore settled only after its consumer is cancelled: with a prefetch of 1, no other
delivery is in transit then.
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
    from collections.abc import Awaitable, Callable, Coroutine

    from hopback.broker.port import Connection, QueueState
    from hopback.message import Delivery
    from hopback.runtime.quarantine import Quarantine
    from hopback.runtime.settling import Environment
    from hopback.runtime.worker import Work

_LOG = logging.getLogger("hopback.runtime")


class Intake:
    """The subscription of one session to its queue.

    Without `quarantine` the window is open from the start and no message is suspected. `give_up` is
    called with the reason when the session can receive no more deliveries. `on_cancel` is called
    when the broker cancels the subscription.
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
        """Deliveries that wait until the window is open, in their order."""
        self._tag: str | None = None
        self._stopped = False
        self._changing = asyncio.Lock()
        """Held while the broker is asked to change the subscription."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.isolating: bool = False
        """Suspected messages are being handled and the window is closed."""
        self.received: int = 0

    @property
    def is_taking(self) -> bool:
        """Whether it receives deliveries, or will after the suspected messages are handled."""
        return not self._stopped and (self._tag is not None or self.isolating)

    async def start(self) -> None:
        await self._subscribe(self._prefetch if self._open else 1)

    async def stop(self) -> int:
        """Take no more deliveries and return the number of suspected messages that were not
        started.
        """
        self._stopped = True
        async with self._changing:
            tag, self._tag = self._tag, None
            if tag is not None:
                with suppress(BrokerError):
                    await self._session.channel.cancel(tag)
        # With those that came until the broker had heard of it.
        left = len(self._suspected) + len(self._before_opening)
        self._suspected.clear()
        self._before_opening.clear()
        return left

    def end(self) -> None:
        """End the session and cancel its tasks."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    async def _subscribe(self, prefetch: int) -> None:
        """Subscribe, replacing the present subscription without a gap."""
        channel = self._session.channel
        async with self._changing:
            if self._stopped or (
                prefetch != 1 and not self._open
            ):  # closed while it waited its turn
                return
            await channel.qos(prefetch)
            before = self._tag
            self._tag = await channel.consume(
                self._queue, self._on_delivery, on_cancel=self._end_intake
            )
            if before is not None:
                await channel.cancel(before)

    def _end_intake(self, tag: str) -> None:
        if tag == self._tag:
            self._tag = None
            self._on_cancel()

    def _on_delivery(self, delivery: Delivery) -> None:
        self.received += 1
        taken = HeldDelivery(delivery, self._session)
        # Publishes of the run check this event: a run whose channel has ended does not publish.
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
        with suppress(BrokerError):  # the channel has ended, and the session with it
            await self._subscribe(self._prefetch)
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
        """Close the window, wait for runs in progress, and run the suspected messages one by one."""
        is_closed = False
        try:
            while self._suspected and not (self._stopped or self._session.ended.is_set()):
                if self._open and self._prefetch != 1:
                    await self._close_window()
                    is_closed = True
                drained = await quarantine.drain(self._work)
                if not self._stopped:  # meanwhile
                    await quarantine.run(self._suspected.popleft(), self._work, drained=drained)
                if is_closed and not self._suspected:
                    is_closed = False
                    await self._subscribe(1)  # which may bring the next suspected one at once
        except BrokerError:
            return  # the channel has ended, and the session with it
        except Exception:
            _LOG.exception("suspected messages of %s could not be handled apart", self._queue)
            self._give_up("an error beside its handler")
        finally:
            self.isolating = False


class Tell(Protocol):
    """Reports an event of the queue."""

    def __call__(self, name: str, reason: str, **more: float | None) -> None:
        """Emit the event `name`."""


class Brake:
    """Watches the answers of one queue and limits how much is handled at once."""

    def __init__(self, policy: BreakerPolicy | None, concurrency: int, tell: Tell) -> None:
        self._policy = policy
        self._concurrency = concurrency
        self._tell = tell
        self._limit: Callable[[int], None] = lambda _size: None
        self._breaker = Breaker()
        self._probing: asyncio.TimerHandle | None = None
        self._time = loop_time

    def control(self, limit: Callable[[int], None]) -> None:
        """Set the function that limits the concurrency of the work."""
        self._limit = limit

    @property
    def state(self) -> BreakerState:
        return self._breaker.state

    @property
    def is_closed(self) -> bool:
        """Whether the breaker is closed."""
        return self._breaker.state is BreakerState.CLOSED

    def observe(self, answer: Answer) -> None:
        """Report the answer of a run to the breaker, and pause or resume accordingly."""
        if self._policy is None:
            return
        now, before = self._time(), self._breaker.state
        failed = not isinstance(answer.outcome, Done | Snooze)
        self._breaker = after_run(self._breaker, self._policy, failed=failed, now=now)
        if self._breaker.state is before:
            return
        if self._breaker.state is BreakerState.OPEN:
            self._limit(0)
            self._probing = asyncio.get_running_loop().call_at(self._breaker.until, self._probe)
            self._tell("consumer.paused", "everything fails", until=self._breaker.until - now)
        else:
            self._limit(self._concurrency)
            self._tell("consumer.resumed", "a probe worked")

    def _probe(self) -> None:
        """The cool-down is over: let a few through and see."""
        # A loop may call slightly early. A breaker that stayed open would never get a probe.
        self._breaker = at(self._breaker, max(self._time(), self._breaker.until))
        if self._policy is not None:
            self._limit(self._policy.probes)

    def release(self) -> None:
        """The end: no probe any more."""
        if self._probing is not None:
            self._probing.cancel()


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """How much a consumer takes and does at once, and when it pauses."""

    prefetch: int
    concurrency: int
    breaker: BreakerPolicy | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """The unsettled deliveries of a closed consumer. The broker redelivers all of them.

    `kept` could be neither settled nor moved, as reported by their `delivery.held` events.
    """

    queue: str
    not_started: int
    interrupted: int
    kept: int = 0


class ConsumerState(StrEnum):
    """The activity of a consumer, for liveness checks."""

    STARTING = "starting"
    """No channel yet, or no longer: it is being restored."""
    CONSUMING = "consuming"
    PAUSED = "paused"
    """Paused by command. `Consumer.breaker` shows a pause by an open breaker."""
    CLOSED = "closed"


class _Ending(NamedTuple):
    """Why a session ended, whether that was not our wish, and whether its runs are only too slow."""

    reason: str
    lost: bool
    moves: bool = False


class Consumer:
    """Consumes one queue, session after session, until it is closed."""

    def __init__(
        self,
        queue: str,
        limits: ConsumerLimits,
        make_work: Callable[[Callable[[Answer], object]], Work],
        environment: Environment,
        quarantine: Quarantine | None,
        make_slow_runs: Callable[[Work], SlowRuns],
    ) -> None:
        self.queue = queue
        self._limits = limits
        self._environment = environment
        self._quarantine = quarantine
        self._brake = Brake(limits.breaker, limits.concurrency, self._tell)
        self._work = make_work(self._brake.observe)
        self._brake.control(self._work.limit)
        self.slow_runs: SlowRuns = make_slow_runs(self._work)
        self._time = loop_time
        self._session: ConsumeSession | None = None
        self.retired: dict[ConsumeSession, asyncio.Future[BrokerError | None]] = {}
        """Sessions whose channel stays open for the deliveries in hand, with the end of each channel."""
        self._closing_channels: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Future[_Ending] | None = None
        self._intake: Intake | None = None
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._resting = asyncio.Event()
        self._resting.set()
        self._closing = False
        self._received = 0
        """Deliveries of the sessions before this one."""
        self._seen = -1
        self.trouble: str = ""
        """Why its queue cannot be consumed at present. Empty if it can."""
        self.started: asyncio.Event = asyncio.Event()
        """Set when it first consumes, or when it is paused before that."""

    @property
    def settled_count(self) -> int:
        """How many deliveries were settled so far."""
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
        """Whether the broker knows this consumer now, as far as we know."""
        return self._intake is not None and self._intake.is_taking

    @property
    def in_flight(self) -> int:
        """How many deliveries are being handled now."""
        return self._work.in_flight

    @property
    def held_count(self) -> int:
        """How many deliveries are in hand because they cannot be moved on or settled."""
        return self._work.held_count + self._work.kept_count

    @property
    def kept_count(self) -> int:
        """How many deliveries could be neither settled nor moved."""
        return self._work.kept_count

    @property
    def standstill(self) -> str:
        """Why no more deliveries can be handled: held deliveries use all capacity. Empty if they do
        not.
        """
        full = self._work.stuck_count >= self._limits.concurrency
        if full or 0 < self._limits.prefetch <= self.held_count:
            return self._work.trouble or "they cannot be settled safely"
        return ""

    @property
    def stuck_runs(self) -> str:
        """The messages whose handlers have not returned, if no worker is free. Otherwise empty."""
        full = len(self.slow_runs.stuck) >= self._limits.concurrency
        return self.slow_runs.names() if full else ""

    def look(self) -> None:
        """Look for slow runs: move away from their channel, and close channels that have served."""
        self.slow_runs.look()
        for session in [one for one in self.retired if not self._work.holds(one)]:
            self.retired.pop(session)
            session.ended.set()
            closing = asyncio.ensure_future(_close(session))
            self._closing_channels.add(closing)
            closing.add_done_callback(self._closing_channels.discard)
        intake = self._intake
        if intake is None or not intake.is_taking or intake.isolating or self._closing:
            return
        runs = self.slow_runs.slow
        if any(taken.session is self._session for run in runs for taken in run.deliveries):
            self._give_up(_Ending("a handler is slow", lost=False, moves=True))

    @property
    def breaker(self) -> BreakerState:
        """Whether the queue is paused because everything failed."""
        return self._brake.state

    async def serve(
        self, connection: Connection, usable: Callable[[str, Connection, float], Awaitable[str]]
    ) -> None:
        """Consume on this connection until it ends. A closed channel is replaced.

        `usable` is called before each session with the time at which the last one was lost. The
        queue may have been deleted, and `usable` may restore it, or it may have been replaced.
        While `usable` returns a reason, the queue is not consumed.
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
        """Run one session and return why it ended. The supervisor raises errors of the connection."""
        self._resting.clear()
        self._ending = asyncio.get_running_loop().create_future()
        session: ConsumeSession | None = None
        closed: asyncio.Future[BrokerError | None] | None = None
        try:
            session = ConsumeSession(await connection.open_channel(), connection.version)
            self._session = session
            closed = asyncio.ensure_future(session.channel.wait_closed())
            closed.add_done_callback(partial(self._on_closed, session))
            ending = await self._consume(session, self._ending)
            await self._stop_taking()
            if (ending.lost or ending.moves) and not session.ended.is_set():
                # The channel is still usable without its consumer: unsettled deliveries are settled
                # on it.
                self.retired[session] = closed
                self._session = None
                return ending
            self._work.withdraw()
            await first_of(self._work.finish(), session.ended.wait())
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
                self._work.withdraw()
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

    def restore(self, reason: str) -> None:
        """Give the present session up and start another."""
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
        """Whether the broker seems to have lost this consumer.

        That is so if the queue has no consumer, or if it has ready messages while this consumer was
        idle between two checks. Other processes may consume the queue too, but such messages should
        have been delivered here.
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
        return queue.consumers == 0 or (queue.messages > 0 and idle and self._brake.is_closed)

    def _tell(self, name: str, reason: str, **more: Any) -> None:
        self._environment.bus.emit(name, {"queue": self.queue, "reason": reason, **more})

    def pause(self, reason: str) -> None:
        """Take no more deliveries. Runs in progress finish, and waiting deliveries are requeued."""
        if self._wanted.is_set() and not self._closing:
            self._wanted.clear()
            self.started.set()
            self._tell("consumer.paused", reason, until=None)
            self._give_up(_Ending(reason, lost=False))

    async def wait_paused(self) -> None:
        """Return when a pause has taken effect and no run is in progress."""
        await self._resting.wait()

    def resume(self, reason: str) -> None:
        if not self._wanted.is_set():
            self._wanted.set()
            self._tell("consumer.resumed", reason)

    async def stop_intake(self) -> int:
        """Stop taking deliveries and starting runs. Returns the number of deliveries not started."""
        self._closing = True
        self._wanted.set()
        suspected = await self._stop_taking()
        return suspected + self._work.wind_down()

    async def _stop_taking(self) -> int:
        return 0 if self._intake is None else await self._intake.stop()

    async def finish(self) -> None:
        """Return when no handler runs any more."""
        await self._work.finish()

    async def flush(self) -> None:
        """Handle an open batch."""
        await self._work.flush()

    async def close(self, not_started: int = 0) -> Leftover:
        """Interrupt the runs in progress, end the session, and return the unsettled deliveries."""
        self._closing = True
        self._brake.release()
        kept = self._work.kept_count
        for session in (*self.retired, *filter(None, [self._session])):
            session.ended.set()
        interrupted = await self._work.stop()
        not_started += self._work.withdraw()
        self._give_up(_Ending("closed", lost=False))
        return Leftover(self.queue, not_started, interrupted, kept)


async def _close(session: ConsumeSession) -> None:
    with suppress(BrokerError):
        await session.channel.close()
