"""One queue's consumer: takes deliveries on a channel, runs the handler, settles.

It lives longer than any channel. Each channel is a session: when it ends, what was not started is
forgotten (the broker has it back), what runs finishes and finds that it cannot settle any more.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hopback.errors import BrokerError, TopologyError
from hopback.policy.breaker import Breaker, BreakerPolicy, BreakerState, after_run, at
from hopback.policy.outcome import Done, Snooze
from hopback.runtime.answer import Session, Taken

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.port import Connection
    from hopback.message import Delivery
    from hopback.runtime.answer import Answer
    from hopback.runtime.settling import Surroundings
    from hopback.runtime.work import Work

__all__ = ["Consumer", "Leftover", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a consumer takes and does at once, and when it pauses."""

    prefetch: int
    concurrency: int
    breaker: BreakerPolicy | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a consumer still held when it was closed; the broker delivers all of it again."""

    queue: str
    not_started: int
    interrupted: int


class Consumer:
    """Consumes one queue, session after session, until it is closed."""

    def __init__(
        self,
        queue: str,
        limits: Limits,
        make_work: Callable[[Callable[[Answer], object]], Work],
        world: Surroundings,
    ) -> None:
        self.queue = queue
        self._limits = limits
        self._world = world
        self._work = make_work(self._observe)
        self._time = asyncio.get_running_loop().time
        self._session: Session | None = None
        self._lost: asyncio.Future[str] | None = None
        self._tag: str | None = None
        self._intake = asyncio.Event()
        self._intake.set()
        self._closing = False
        self._breaker = Breaker()
        self._probing: asyncio.TimerHandle | None = None

    @property
    def handled(self) -> int:
        """How many deliveries were concluded so far."""
        return self._work.concluded

    @property
    def consuming(self) -> bool:
        """Whether the broker knows this consumer now, as far as we know."""
        return self._tag is not None

    @property
    def in_flight(self) -> int:
        """How many deliveries are being handled now."""
        return self._work.in_flight

    @property
    def breaker(self) -> BreakerState:
        """Whether the queue is paused because everything failed."""
        return self._breaker.state

    @property
    def _taking(self) -> bool:
        """Whether deliveries are wanted: neither paused nor closing."""
        return self._intake.is_set() and not self._closing

    async def serve(self, connection: Connection) -> None:
        """Consume on this connection until it ends; a channel that ends is replaced."""
        failures = 0
        while not self._closing:
            await self._intake.wait()
            began = self._time()
            reason = await self._serve_once(connection)
            if not self._taking:
                continue
            self._world.bus.emit("consumer.lost", {"queue": self.queue, "reason": reason})
            lasted = self._time() - began
            failures = 1 if lasted >= self._world.backoff.stable else failures + 1
            await asyncio.sleep(self._world.backoff.delay(failures, self._world.chance()))

    async def _serve_once(self, connection: Connection) -> str:
        """One session; why it ended. What ends the whole connection is raised by its supervisor."""
        session = Session(await connection.open_channel(), connection.version)
        self._session = session
        try:
            return await self._consume(session)
        except TopologyError:
            raise
        except BrokerError as error:
            return str(error)
        finally:
            self._tag = None
            session.ended.set()
            self._work.withdraw()
            with suppress(BrokerError):
                await session.channel.close()

    async def _consume(self, session: Session) -> str:
        channel = session.channel
        self._lost = asyncio.get_running_loop().create_future()
        await channel.qos(self._limits.prefetch)
        self._tag = await channel.consume(
            self.queue, partial(self._on_delivery, session), on_cancel=self._on_cancel
        )
        self._world.bus.emit(
            "consumer.started",
            {
                "queue": self.queue,
                "prefetch": self._limits.prefetch,
                "concurrency": self._limits.concurrency,
            },
        )
        ending = asyncio.ensure_future(channel.wait_closed())
        ending.add_done_callback(self._on_closed)
        try:
            return await self._lost
        finally:
            ending.cancel()

    def restore(self, reason: str) -> None:
        """Give the present session up and start another."""
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

    def _on_closed(self, ending: asyncio.Future[BrokerError | None]) -> None:
        if not ending.cancelled():
            self.restore(str(ending.result() or "the channel was closed"))

    def _on_cancel(self, _tag: str) -> None:
        self.restore("the broker cancelled the consumer")

    def _on_delivery(self, session: Session, delivery: Delivery) -> None:
        self._work.submit(Taken(delivery, session))

    # --- pausing ---------------------------------------------------------------------------------

    def _observe(self, answer: Answer) -> None:
        """Tell the breaker; pause or go on as it says."""
        policy = self._limits.breaker
        if policy is None:
            return
        now = self._time()
        failed = not isinstance(answer.outcome, Done | Snooze)
        before, self._breaker = (
            self._breaker,
            after_run(self._breaker, policy, failed=failed, now=now),
        )
        if self._breaker.state is before.state:
            return
        if self._breaker.state is BreakerState.OPEN:
            self._work.limit(0)
            self._probing = asyncio.get_running_loop().call_at(self._breaker.until, self._probe)
            self._tell("consumer.paused", "everything fails", until=self._breaker.until - now)
        else:
            self._work.limit(self._limits.concurrency)
            self._tell("consumer.resumed", "a probe worked")

    def _probe(self) -> None:
        """The cool-down is over: let a few through and see."""
        policy = self._limits.breaker
        self._breaker = at(self._breaker, self._time())
        if policy is not None:
            self._work.limit(policy.probes)

    def _tell(self, name: str, reason: str, **more: Any) -> None:
        self._world.bus.emit(name, {"queue": self.queue, "reason": reason, **more})

    async def pause(self, reason: str) -> None:
        """Take no more deliveries; what runs finishes, what waits goes back to the queue."""
        if not self._intake.is_set():
            return
        self._intake.clear()
        await self._stop_taking()
        self._work.withdraw()
        await self._work.finish()
        self.restore(reason)
        self._tell("consumer.paused", reason, until=None)

    def resume(self, reason: str) -> None:
        """Take deliveries again."""
        if not self._intake.is_set():
            self._intake.set()
            self._tell("consumer.resumed", reason)

    # --- the end ---------------------------------------------------------------------------------

    async def stop_intake(self) -> int:
        """No new deliveries, nothing more is started; how many had not been started."""
        self._closing = True
        self._intake.set()
        await self._stop_taking()
        return self._work.wind_down()

    async def _stop_taking(self) -> None:
        tag, self._tag = self._tag, None
        if tag is not None and self._session is not None:
            with suppress(BrokerError):
                await self._session.channel.cancel(tag)

    async def finish(self) -> None:
        """Return when no handler runs any more."""
        await self._work.finish()

    async def close(self) -> int:
        """Cancel what still runs, end the session; how many handlers were interrupted."""
        if self._probing is not None:
            self._probing.cancel()
        if self._session is not None:
            self._session.ended.set()
        left = await self._work.stop()
        self.restore("closed")
        return left
