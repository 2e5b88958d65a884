"""Check the brokers regularly, apply the rules, and send the notices.

If several services share a database, only the one with the lease does this. Notices are stored
together with the decision and sent afterwards, so none are lost if the service is killed. The next
service then sends the waiting notices. A notice can therefore be delivered twice, with the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from secrets import token_hex
from typing import TYPE_CHECKING

from msgspec import structs

from hopback.errors import HopbackError, LeaseLost, NoSuch
from hopback.ops.alerts.rules import AlertInput, QueueSeen, decide_alerts
from hopback.ops.alerts.sender import AlertSender, NotTaken
from hopback.ops.alerts.values import AlertKind, AlertList, AlertNotice, AlertTestResult
from hopback.ops.contract.values import Job, Moment
from hopback.policy.backoff import BackoffWaits, delay

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from hopback.clock import Clock
    from hopback.ops.alerts.book import AlertBook, WaitingNotice
    from hopback.ops.alerts.settings import AlertSettings
    from hopback.ops.contract.surveys import ErrorGroup
    from hopback.ops.http.sweep import Sweep

_LOG = logging.getLogger("hopback.ops.http")

_SAMPLES = 60
"""Number of depths to keep for each queue, which cover the time of the longest growth rule. The
depth used by a rule is older than requested by 2 % of this time at most.
"""
_AGAIN = BackoffWaits(first=5.0, factor=2.0, cap=300.0)
"""Waits between attempts to send a notice."""
_ERRORS_FRESH_S = 60.0
"""Seconds until surveys are read again. They change slowly, and reading all of them takes some time."""
_AGE_FRESH_S = 3600.0
"""Seconds for which the oldest message of a survey is used. After this time, it may have been re-driven."""
_GIVEN_UP_S = 3 * 86_400.0
"""Seconds (3 days, for long weekends) after which a notice is given up. The page still shows the alert."""
_KEPT_S = 7 * 86_400.0
"""Seconds (one week) for which sent notices are kept, so that operators can check them."""

_BY_SURVEYS = frozenset({AlertKind.NEW_FINGERPRINT, AlertKind.OLDEST_AGE})


class AlertReader:
    """Read the state of a broker for the rules."""

    def __init__(
        self,
        broker: str,
        sweep: Sweep,
        jobs: Callable[[], Awaitable[Sequence[Job]]],
        errors: Callable[[], Awaitable[Mapping[str, tuple[float, Sequence[ErrorGroup]]]]],
        remember_consumed: Callable[[Iterable[str]], Awaitable[frozenset[str]]],
    ) -> None:
        self.broker = broker
        self._remember_consumed = remember_consumed
        self._consumed: frozenset[str] | None = None
        self._sweep = sweep
        self._jobs = jobs
        self._errors = errors
        self._known: Mapping[str, tuple[float, Sequence[ErrorGroup]]] = {}
        self._known_at = float("-inf")
        self._past: dict[str, deque[tuple[float, int]]] = {}

    async def see(self, now: float, back_s: float, *, errors: bool = True) -> AlertInput:
        """Return the current state, and earlier depths from the last `back_s` seconds.

        If `errors` is True, errors found by surveys are included. Raises an error if the broker is
        unavailable.
        """
        if errors and not 0 <= now - self._known_at < _ERRORS_FRESH_S:
            self._known, self._known_at = await self._errors(), now
        swept = await self._sweep.get()
        jobs = await self._jobs()
        consumed = frozenset(name for each in swept.queues for name in each.consumed or ())
        if self._consumed is None or not consumed <= self._consumed:
            self._consumed = await self._remember_consumed(consumed)
        for gone in self._past.keys() - {each.queue for each in swept.queues}:
            del self._past[gone]
        queues = []
        for found in (each for each in swept.queues if each.exists):
            past = self._past.setdefault(found.queue, deque(maxlen=_SAMPLES + 1))
            earlier = tuple(past)
            depth = found.depth.total
            if depth is not None and (not past or now - past[-1][0] >= back_s / _SAMPLES):
                past.append((now, depth))
            surveyed_at, groups = self._known.get(found.queue, (0.0, ()))
            is_fresh = now - surveyed_at <= _AGE_FRESH_S
            firsts = [group.first for group in groups if group.first is not None and is_fresh]
            new = tuple(group for group in groups if group.is_new)
            held_back = sum(each.messages for each in found.held_back)
            oldest = min(firsts, default=None)
            unconsumed = found.unconsumed
            if unconsumed is not None:  # a queue that never had a consumer has not lost any
                unconsumed = tuple(name for name in unconsumed if name in self._consumed)
            queues.append(
                QueueSeen(found.queue, depth, earlier, oldest, new, held_back, unconsumed)
            )
        return AlertInput(self.broker, tuple(queues), tuple(jobs))


class Alerting:
    """Apply the rules to the brokers in `sources`, and notify the targets.

    `environment` contains the secrets of the targets. `address` is used for a broker that has no
    name.
    """

    def __init__(
        self,
        settings: AlertSettings,
        book: AlertBook,
        sources: Iterable[AlertReader],
        clock: Clock,
        environment: Mapping[str, str],
        address: str = "",
    ) -> None:
        self._settings = settings
        self._book = book
        self._sources = tuple(sources)
        self._senders = {
            target.name: AlertSender(target, environment, clock, settings.link, address)
            for target in settings.targets
        }
        self._clock = clock
        self._owner = token_hex(8)
        self._turn = asyncio.Lock()
        longest = max((one.settings.timeout_seconds for one in self._senders.values()), default=0)
        # Checking and sending takes less time than this, so a running service keeps its lease.
        self._lease_s = 2 * settings.every_seconds + 2 * longest
        self._wants_errors = any(rule.kind in _BY_SURVEYS for rule in settings.rules)
        growing = (rule for rule in settings.rules if rule.kind is AlertKind.GROWTH)
        self._back_s = max((rule.within_seconds for rule in growing), default=0.0)

    @property
    def has_rules(self) -> bool:
        """Whether there are rules to check, or targets that may have waiting notices."""
        return bool(self._settings.rules or self._settings.targets)

    async def run(self) -> None:
        """Check the brokers regularly until the task is cancelled. Errors are logged."""
        try:
            while True:
                try:
                    await self.look()
                except Exception as error:  # the database or a broker may be unavailable
                    _LOG.warning("alerts could not be checked", exc_info=error)
                await asyncio.sleep(self._settings.every_seconds)
        finally:
            try:
                await self._book.step_down(self._owner)
            except HopbackError:
                _LOG.debug("the lease of the alerts was not released and will expire")

    async def look(self) -> bool:
        """Check once, store the decision and send the notices that are due.

        Returns False if another service has the lease.
        """
        async with self._turn:
            now = self._clock.now()
            seen = await self._see(now)
            if not await self._book.lead(self._owner, now, self._lease_s):
                return False
            known, served = await self._book.alerts(), [one.broker for one in self._sources]
            decision = decide_alerts(self._settings, seen, known, now, served)
            try:
                if decision.changed or decision.forgotten or decision.notices:
                    await self._book.save(self._owner, now, decision)
                # Only send one notice to each target at a time to keep their order.
                while waiting := await self._book.next_notices(self._clock.now()):
                    if not await self._book.lead(self._owner, self._clock.now(), self._lease_s):
                        raise LeaseLost("another service sends the alerts now")
                    await asyncio.gather(*map(self._send, waiting))
                await self._book.forget(now - _KEPT_S)
            except LeaseLost:
                return False
            return True

    async def _see(self, now: float) -> list[AlertInput]:
        """Return the state of the brokers that respond. All are read concurrently."""
        seen = await asyncio.gather(
            *(source.see(now, self._back_s, errors=self._wants_errors) for source in self._sources),
            return_exceptions=True,
        )
        found = []
        for source, one in zip(self._sources, seen, strict=True):
            if isinstance(one, Exception):  # its alerts do not change until it responds
                _LOG.info("alerts: broker %s does not answer: %s", source.broker, one)
            elif isinstance(one, BaseException):
                raise one
            else:
                found.append(one)
        return found

    async def _send(self, waiting: WaitingNotice) -> None:
        notice, number = waiting.notice, waiting.number
        target, sender = notice.target, self._senders.get(notice.target)
        problem = "the settings no longer have this target"
        if sender is not None:
            try:
                await sender.send(notice)
            except NotTaken as error:
                problem = str(error)
            else:
                await self._book.end_notice(self._owner, number, self._clock.now())
                return
        now = self._clock.now()
        if sender is None or now - notice.created_at > _GIVEN_UP_S:
            _LOG.error("an alert for %s was given up: %s", target, problem)
            await self._book.end_notice(self._owner, number, now, problem)
            return
        wait = delay(waiting.attempts + 1, _AGAIN, 0.0)
        _LOG.warning("an alert for %s was refused: %s. Next in %g s", target, problem, wait)
        await self._book.retry_notice(self._owner, number, now, now + wait, problem)

    async def list_alerts(self) -> AlertList:
        """Return all alerts, rules and targets."""
        kinds = {name: one.settings.kind.value for name, one in self._senders.items()}
        found = await self._book.list_alerts(kinds)
        return structs.replace(found, rules=self._settings.rules)

    async def test(self, target: str) -> AlertTestResult:
        """Send a test notice to a target. Raises NoSuch if the target is not in the settings."""
        sender = self._senders.get(target)
        if sender is None:
            known = ", ".join(self._senders) or "none"
            raise NoSuch("alert target", target, f"the settings have {known}")
        now = Moment(self._clock.now())
        try:
            await sender.send(AlertNotice(f"n-test-{token_hex(8)}", target, now, is_test=True))
        except NotTaken as error:
            return AlertTestResult(target, delivered=False, problem=str(error))
        return AlertTestResult(target, delivered=True)
