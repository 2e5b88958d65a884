"""Settle deliveries according to the result of the handler.

Settling is always the last step. If an earlier step fails, it is repeated with an increasing delay.
Requeueing the message instead would increment its delivery count. If the channel is closed, the
broker redelivers the message.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, assert_never

from hopback.broker.supervise import Backoff
from hopback.clock import Clock, SystemClock
from hopback.durations import LONGEST_MS
from hopback.errors import (
    BrokerError,
    DeliveryLost,
    InvalidMessage,
    PreconditionFailed,
    PublishRefused,
)
from hopback.observe.events import Bus
from hopback.policy import decision as decided
from hopback.policy.copies import EndedRuns, may_be_copy, token_of
from hopback.policy.decide import decide, may_dead_letter
from hopback.policy.decision import Decision, Effect, Hold, Publish, Settle, Settlement
from hopback.policy.effects import Occasion, effects, failure_from_outcome, park_raw
from hopback.policy.outcome import Outcome, Retry, Snooze
from hopback.runtime.answer import DONE, Answer, BatchObserver, ConsumeSession, HeldDelivery, Run
from hopback.runtime.context import Send, context_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hopback.message import Message
    from hopback.runtime.failures import FailedRuns
    from hopback.runtime.quarantine import SupervisorLink
    from hopback.topology.plan import Plan

_LOG = logging.getLogger("hopback.runtime")


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of the runtime: clock, random numbers, host and observers.

    - `backoff`: the delay before a failed step is repeated.
    - `reconnect`: the delay before a lost connection is opened again.
    - `on_exception`: called with the exception of each failed run. Events don't contain objects.
    - `wrap_run`: wraps each run of a handler, for example `tracing.trace_run`.
    - `observe_batch`: wraps the handling of each batch, for example `tracing.trace_batch`.
    - `make_copy_id`: generates the id shared by all copies of a message. It must be unique.
    - `supervisor`: the parent process, which remembers the message that crashed an earlier process.
    """

    bus: Bus = field(default_factory=Bus)
    clock: Clock = field(default_factory=SystemClock)
    chance: Callable[[], float] = random.random
    host: str = field(default_factory=socket.gethostname)
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.5, most=30.0))
    reconnect: Backoff = field(default_factory=Backoff)
    on_exception: Callable[[BaseException], object] | None = None
    wrap_run: Callable[[Run, Plan], Run] | None = None
    observe_batch: BatchObserver | None = None
    make_copy_id: Callable[[], str] = lambda: secrets.token_hex(12)
    supervisor: SupervisorLink | None = None


class _Abandoned(Exception):
    """Raised when the channel is closed and the delivery cannot be settled."""


class Settling:
    def __init__(
        self,
        plan: Plan,
        publish: Send,
        environment: Environment,
        *,
        dead_letters_park: bool = False,
        longest_delay_ms: int = 0,
        most_holds: int = 0,
        failed: FailedRuns | None = None,
    ) -> None:
        self.plan = plan
        self._longest_delay_ms = longest_delay_ms
        self._failed = failed
        self._most_holds = most_holds
        self._holding = 0
        self._kept: list[HeldDelivery] = []
        self._ended = EndedRuns()
        self.held_count: int = 0
        """The number of deliveries that are held because a publish failed."""
        self.trouble: str = ""
        """The last error, or an empty string."""
        self._publish = publish
        self._environment = environment
        self._dead_letters_park = dead_letters_park
        self._context = context_with(None, (), environment.clock)

    @property
    def kept_count(self) -> int:
        """How many deliveries could not be settled although their channel is still open."""
        self._kept = [taken for taken in self._kept if not taken.session.ended.is_set()]
        return len(self._kept)

    def keeps(self, session: ConsumeSession) -> bool:
        """Return True if any of these deliveries belong to the session."""
        return any(taken.session is session for taken in self._kept)

    async def conclude(self, taken: HeldDelivery, answer: Answer, duration: float) -> bool:
        """Settle a delivery. Returns False if this was not possible."""
        if answer.error is not None:
            self._report(taken, answer, answer.error)
        try:
            try:
                decision = self._choose_decision(taken, answer)
                await self._carry_out(self._effects(taken, answer, decision), taken, answer)
            except _Abandoned:
                raise
            except Exception as error:
                decision = await self._park_raw(taken, answer, error)
        except _Abandoned as abandoned:
            self.abandon(taken, duration, str(abandoned))
            return False
        if isinstance(decision, decided.Keep):
            self._kept.append(taken)
        if self._environment.bus.active:
            self._record(taken, answer, decision, duration)
        return not isinstance(decision, decided.Keep)

    def _report(self, taken: HeldDelivery, answer: Answer, error: BaseException) -> None:
        """Pass the exception to the observers. The delivery is settled even if they fail."""
        try:
            if self._environment.on_exception is not None:
                self._environment.on_exception(error)
            if self._failed is not None:
                context = self._context(taken.delivery, self.plan, self._publish)
                self._failed.tell(error, answer.failure, context)
        except Exception:
            _LOG.exception("a failed run of %s could not be reported", self.plan.queue)

    async def _park_raw(self, taken: HeldDelivery, answer: Answer, error: Exception) -> Decision:
        """Dead-letter a message that cannot be rewritten.

        Leaving it unsettled would permanently use up a slot of the prefetch.
        """
        reason = f"not rewritten: {type(error).__name__}: {error}"
        last: Exception = error
        may_reject = self._dead_letters_park and may_dead_letter(
            taken.reading(self.plan), taken.session.version
        )
        for steps in park_raw(taken.delivery, self.plan, reason, may_reject=may_reject):
            try:
                await self._carry_out(steps, taken, answer)
            except _Abandoned:
                raise
            except Exception as again:
                last = again
            else:
                return decided.Park(self.plan.parking.by, self.plan.attempts, reason)
        return decided.Keep(1, f"{reason}, not parked: {type(last).__name__}: {last}")

    def abandon(self, taken: HeldDelivery, duration: float, reason: str) -> None:
        """Report a delivery that was not settled. The broker redelivers it."""
        if not taken.session.ended.is_set():
            self._kept.append(taken)
        if self._environment.bus.active:
            fields = self._fields(taken, duration) | {"reason": reason}
            self._environment.bus.emit("delivery.abandoned", fields)

    def acknowledge(self, taken: HeldDelivery, duration: float) -> bool:
        """Ack a successful run. No event is emitted.

        Returns False if an event is needed.
        """
        tallies = self._environment.bus.tallies(self.plan.queue)
        if tallies is None:
            return False
        try:
            taken.session.channel.ack(taken.delivery.tag)
        except BrokerError:
            return False
        if may_be_copy(taken.delivery):
            self._remember(taken)
        for tally in tallies:
            tally.add(duration)
        return True

    def settle_copy(self, taken: HeldDelivery) -> bool:
        """Ack a copy of a message that was already handled.

        Returns False for all other messages.
        """
        if not self._ended or not may_be_copy(taken.delivery):
            return False
        token = token_of(taken.reading(self.plan))
        if token is None or token not in self._ended:
            return False
        try:
            _settle(taken, Settlement.ACK)
        except _Abandoned as abandoned:
            self.abandon(taken, 0.0, str(abandoned))
        else:
            self._environment.bus.emit("delivery.copy", self._fields(taken, 0.0))
        return True

    def _remember(self, taken: HeldDelivery) -> None:
        """Remember that a message was handled, in case its ack is lost."""
        token = token_of(taken.reading(self.plan))
        if token is not None:
            self._ended.add(token)

    def _choose_decision(self, taken: HeldDelivery, answer: Answer) -> Decision:
        if answer is DONE:
            return _ACK
        decision = self._decide(taken, answer, self.plan)
        full = self._holding >= self._most_holds and bool(self.plan.tiers)
        if isinstance(decision, decided.Requeue) and full:
            # Too many deliveries are being held, so use a retry queue if there is one.
            return self._decide(taken, answer, replace(self.plan, snooze=None))
        return decision

    def _decide(self, taken: HeldDelivery, answer: Answer, plan: Plan) -> Decision:
        return decide(
            taken.delivery,
            answer.outcome,
            plan,
            version=taken.session.version,
            chance=self._environment.chance(),
            dead_letters_park=self._dead_letters_park,
            longest_delay_ms=self._longest_delay_ms,
            reading=taken.reading(self.plan),
        )

    def _effects(self, taken: HeldDelivery, answer: Answer, decision: Decision) -> Sequence[Effect]:
        if decision is _ACK:
            return _ACKED
        occasion = Occasion(
            self._environment.clock.now(),
            self._environment.host,
            answer.failure,
            answer.status,
            self._environment.make_copy_id(),
        )
        return effects(
            decision, taken.delivery, self.plan, occasion, reading=taken.reading(self.plan)
        )

    async def _carry_out(
        self, steps: Sequence[Effect], taken: HeldDelivery, answer: Answer
    ) -> None:
        for step in steps:
            match step:
                case Settle(how=how):
                    if how is Settlement.ACK:
                        self._remember(taken)
                    _settle(taken, how)
                case Publish(message=message):
                    try:
                        await self._publish(message, taken.session.ended)
                    except DeliveryLost as lost:
                        raise _Abandoned(str(lost)) from lost
                    except BrokerError as error:
                        if self._is_final(error):
                            raise
                        await self._publish_at_last(message, error, taken, answer)
                case Hold(delay=delay):
                    self._holding += 1
                    try:
                        await _pause(taken, delay)
                    finally:
                        self._holding -= 1
                case _:
                    assert_never(step)

    async def _publish_at_last(
        self, message: Message, error: BrokerError, taken: HeldDelivery, answer: Answer
    ) -> None:
        """Repeat a failed publish until it is confirmed or the delivery is lost.

        Raises the error if the message can never be sent. To know this, a connection is required.
        """
        failures = 0
        self.held_count += 1
        try:
            while True:
                failures += 1
                self.trouble = f"{type(error).__name__}: {error}"
                wait = self._environment.backoff.delay(failures, self._environment.chance())
                failed = _failure_fields(answer, self.trouble)
                self._environment.bus.emit(
                    "delivery.held", self._fields(taken, 0.0) | failed | {"retry_in": wait}
                )
                await _pause(taken, wait)
                try:
                    return await self._publish(message, taken.session.ended)
                except DeliveryLost as lost:
                    raise _Abandoned(str(lost)) from lost
                except BrokerError as again:
                    if self._is_final(again):
                        raise
                    error = again
        finally:
            self.held_count -= 1
            self.trouble = self.trouble if self.held_count else ""

    def _is_final(self, error: BrokerError) -> bool:
        """Return True if the message can never be sent.

        This is the case for invalid messages, and for bodies that exceed the current limit of the
        broker. The limit may have been lowered since the message was accepted, for example by an
        upgrade to RabbitMQ 4.0. The broker can still dead-letter such messages.
        """
        is_refused = isinstance(error, PublishRefused) and isinstance(
            error.__cause__, PreconditionFailed
        )
        return isinstance(error, InvalidMessage) or (is_refused and self._dead_letters_park)

    def _record(
        self, taken: HeldDelivery, answer: Answer, decision: Decision, duration: float
    ) -> None:
        extra: dict[str, Any]  # for the event
        match decision:
            case decided.Ack():
                name, extra = "delivery.done", {}
            case decided.Retry(tier=tier, counted=True):
                waits = _wait_fields(answer.outcome, tier.delay_ms)
                name, extra = "delivery.retried", {"tier": tier.name} | waits
            case decided.Retry(tier=tier):
                name, extra = "delivery.snoozed", _wait_fields(answer.outcome, tier.delay_ms)
            case decided.Requeue(delay=delay):
                name = "delivery.snoozed"
                extra = _wait_fields(answer.outcome, round(delay * 1000))
            case decided.Park(attempt=attempt):
                exhausted = attempt >= self.plan.attempts
                name = "delivery.parked"
                extra = {"dead_letter_queue": self.plan.parking.queue, "exhausted": exhausted}
            case decided.Keep():
                name, extra = "delivery.held", {"retry_in": None}
            case _:
                assert_never(decision)
        fields = self._fields(taken, duration) | extra
        if name in _FAILURES:
            fields |= _failure_fields(answer, getattr(decision, "reason", ""))
        self._environment.bus.emit(name, fields)

    def _fields(self, taken: HeldDelivery, duration: float) -> dict[str, Any]:
        reading, properties = taken.reading(self.plan), taken.delivery.properties
        return {
            "queue": self.plan.queue,
            "routing_key": reading.origin[1],
            "message_id": properties.message_id,
            "message_type": properties.type,
            "correlation_id": properties.correlation_id,
            "attempt": reading.attempt,
            "max_attempts": self.plan.attempts,
            "duration": duration,
        }


_ACK = decided.Ack()
_ACKED: tuple[Effect, ...] = (Settle(Settlement.ACK),)
_FAILURES = frozenset({"delivery.retried", "delivery.parked", "delivery.held"})


def _wait_fields(outcome: Outcome, delay_ms: int) -> dict[str, Any]:
    """Return the delay before a retry. A handler may ask for a longer one."""
    asked = None
    match outcome:
        case Retry(after=float() | int() as seconds) | Snooze(delay=seconds):
            asked_ms = min(seconds * 1000, float(LONGEST_MS))
            asked = round(asked_ms) if asked_ms > delay_ms + 1 else None
    return {"delay_ms": delay_ms, "asked_ms": asked}


def _failure_fields(answer: Answer, reason: str) -> dict[str, Any]:
    failure = answer.failure or failure_from_outcome(reason, answer.status)
    return {
        "reason": reason,
        "error": failure.type or None,
        "fingerprint": failure.fingerprint,
    }


def _settle(taken: HeldDelivery, how: Settlement) -> None:
    """Settle a delivery on its channel."""
    channel, tag = taken.session.channel, taken.delivery.tag
    try:
        if how is Settlement.ACK:
            channel.ack(tag)
        else:
            channel.nack(tag, requeue=how is Settlement.RELEASE)
    except BrokerError as error:
        raise _Abandoned(str(error)) from error


async def _pause(taken: HeldDelivery, seconds: float) -> None:
    """Sleep, but wake up if the channel is closed."""
    try:
        async with asyncio.timeout(seconds):
            await taken.session.ended.wait()
    except TimeoutError:
        return
    raise _Abandoned("the channel ended while the delivery was in hand")
