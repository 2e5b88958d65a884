"""Looks at the dead letters from time to time, decides which alerts fire, and tells people.

Of several services on one database one leads: it alone decides and sends. What is to be told is written down
with the decision and sent afterwards, so a service that is killed in between loses nothing; the next one
sends what waits. A message may come twice then, under the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from secrets import token_hex
from typing import TYPE_CHECKING

from msgspec import structs

from hopback.admin.alert_sending import NotTaken
from hopback.deadletters.alert_book import list_alerts, read_alerts
from hopback.deadletters.alerts import (
    AlertKind,
    AlertNotice,
    AlertTestResult,
    BrokerSeen,
    FingerprintSeen,
    QueueSeen,
    decide_alerts,
)
from hopback.deadletters.codec import encode, from_json
from hopback.deadletters.contract import Moment
from hopback.errors import HopbackError, LeaseLost, NoSuch
from hopback.policy.backoff import BackoffWaits, delay

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from hopback.admin.alert_sending import AlertSender
    from hopback.admin.alert_settings import AlertSettings
    from hopback.admin.overview import Sweep
    from hopback.clock import Clock
    from hopback.deadletters.alert_book import AlertBook, WaitingNotice
    from hopback.deadletters.alerts import AlertList
    from hopback.deadletters.contract import Job, QueueSummary
    from hopback.deadletters.surveys import ErrorGroup

__all__ = ["AlertSource", "Alerting"]

_LOG = logging.getLogger("hopback.admin")

_SAMPLES = 60  # of the time that the longest growth rule looks back: each is at most 2 % of it late
_AGAIN = BackoffWaits(first=5.0, factor=2.0, cap=300.0)
_ERRORS_FRESH_S = 60.0  # surveys take minutes; reading all of them at each look would be felt
_AGE_FRESH_S = 3600.0  # what was the oldest an hour ago may have been sent back since
_GIVEN_UP_S = 3 * 86_400.0  # a long weekend: older news is on the page
_KEPT_S = 7 * 86_400.0  # what was sent is kept for a week: somebody may ask whether it was


_BY_SURVEYS = frozenset({AlertKind.NEW_FINGERPRINT, AlertKind.OLDEST_AGE})


class AlertSource:
    """What alerts are about, of one broker."""

    def __init__(
        self,
        broker: str,
        sweep: Sweep,
        jobs: Callable[[], Awaitable[Sequence[Job]]],
        errors: Callable[[], Awaitable[Mapping[str, tuple[float, Sequence[ErrorGroup]]]]],
    ) -> None:
        self.broker = broker
        self._sweep = sweep
        self._jobs = jobs
        self._errors = errors
        self._known: Mapping[str, tuple[float, Sequence[ErrorGroup]]] = {}
        self._known_at = float("-inf")
        self._past: dict[str, deque[tuple[float, int]]] = {}

    async def see(self, now: float, back_s: float, *, errors: bool = True) -> BrokerSeen:
        """How it is now, with depths of `back_s` seconds back; raises what the broker says.

        `errors`: with what surveys found in the queues.
        """
        if errors and not 0 <= now - self._known_at < _ERRORS_FRESH_S:
            self._known, self._known_at = await self._errors(), now
        swept = await self._sweep.get()
        jobs = await self._jobs()
        for gone in self._past.keys() - {each.queue for each in swept.queues}:
            del self._past[gone]
        return BrokerSeen(
            self.broker,
            tuple(self._queue(each, now, back_s) for each in swept.queues if each.exists),
            tuple(jobs),
        )

    def _queue(self, found: QueueSummary, now: float, back_s: float) -> QueueSeen:
        past = self._past.setdefault(found.queue, deque(maxlen=_SAMPLES + 1))
        earlier = tuple(past)
        depth = found.depth.total
        if depth is not None and (not past or now - past[-1][0] >= back_s / _SAMPLES):
            past.append((now, depth))
        surveyed_at, groups = self._known.get(found.queue, (0.0, ()))
        is_fresh = now - surveyed_at <= _AGE_FRESH_S
        firsts = [group.first for group in groups if group.first is not None and is_fresh]
        return QueueSeen(
            found.queue,
            depth,
            earlier,
            min(firsts, default=None),
            tuple(
                FingerprintSeen(one.fingerprint, one.error or one.message, one.first_seen or 0.0)
                for one in groups
                if one.is_new
            ),
            sum(each.messages for each in found.held_back),
            found.unconsumed,
        )


class Alerting:
    """Runs the rules. `senders` tell the targets, by name; `sources` are asked each time."""

    def __init__(
        self,
        settings: AlertSettings,
        book: AlertBook,
        sources: Iterable[AlertSource],
        senders: Mapping[str, AlertSender],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._book = book
        self._sources = tuple(sources)
        self._senders = dict(senders)
        self._clock = clock
        self._owner = token_hex(8)
        self._turn = asyncio.Lock()
        longest = max((one.settings.timeout_seconds for one in self._senders.values()), default=0)
        # Longer than a look and a message together may take: who is alive keeps it.
        self._lease_s = 2 * settings.every_seconds + 2 * longest
        self._wants_errors = any(rule.kind in _BY_SURVEYS for rule in settings.rules)
        growing = (rule for rule in settings.rules if rule.kind is AlertKind.GROWTH)
        self._back_s = max((rule.within_seconds for rule in growing), default=0.0)

    @property
    def has_rules(self) -> bool:
        """Whether there is anything to look for, or to send still."""
        return bool(self._settings.rules or self._settings.targets)

    async def run(self) -> None:
        """Look and tell until cancelled; whatever goes wrong, the next look comes."""
        try:
            while True:
                try:
                    await self.look()
                except Exception as error:  # a database or broker that is away today is tried again
                    _LOG.warning("alerts could not be looked after", exc_info=error)
                await asyncio.sleep(self._settings.every_seconds)
        finally:
            try:
                await self._book.step_down(self._owner)
            except HopbackError:
                _LOG.debug("the lease of the alerts ends by itself")

    async def look(self) -> bool:
        """Look once, write down what follows and send what is due; False if another service leads."""
        async with self._turn:
            return await self._look()

    async def _look(self) -> bool:
        now = self._clock.now()
        seen = await self._see(now)
        if not await self._book.lead(self._owner, now, self._lease_s):
            return False
        rules, manners = self._settings.rules, self._settings.manners
        known, served = await read_alerts(self._book), [one.broker for one in self._sources]
        decision = decide_alerts(rules, seen, known, now, manners, served)
        try:
            if decision.changed or decision.forgotten or decision.notices:
                await self._book.save(
                    self._owner,
                    now,
                    documents={each.id: encode(each).decode() for each in decision.changed},
                    forgotten=decision.forgotten,
                    notices=[(each.target, encode(each).decode()) for each in decision.notices],
                )
            # Send what is due, each target in its order, several targets at a time.
            while waiting := await self._book.next_notices(self._clock.now()):
                if not await self._book.lead(self._owner, self._clock.now(), self._lease_s):
                    raise LeaseLost("another service looks after the alerts now")
                await asyncio.gather(*map(self._send, waiting))
            await self._book.forget(now - _KEPT_S)
        except LeaseLost:
            return False
        return True

    async def _see(self, now: float) -> list[BrokerSeen]:
        """The brokers that answer, asked all at once: those that are away do not add up."""
        seen = await asyncio.gather(
            *(source.see(now, self._back_s, errors=self._wants_errors) for source in self._sources),
            return_exceptions=True,
        )
        found = []
        for source, one in zip(self._sources, seen, strict=True):
            if isinstance(one, Exception):  # its alerts stay as they are until it answers
                _LOG.info("alerts: broker %s was not seen: %s", source.broker or "", one)
            elif isinstance(one, BaseException):
                raise one
            else:
                found.append(one)
        return found

    async def _send(self, waiting: WaitingNotice) -> None:
        number, target, document, made_at, attempts = waiting
        sender = self._senders.get(target)
        problem = "the settings have no such target any more"
        if sender is not None:
            try:
                await sender.send(from_json(AlertNotice, document))
            except NotTaken as error:
                problem = str(error)
            else:
                await self._book.ended(self._owner, number, self._clock.now())
                return
        now = self._clock.now()
        if sender is None or now - made_at > _GIVEN_UP_S:
            _LOG.error("an alert for %s is given up: %s", target, problem)
            await self._book.ended(self._owner, number, now, problem)
            return
        wait = delay(attempts + 1, _AGAIN, 0.0)
        _LOG.warning("an alert for %s was not taken: %s; again in %g s", target, problem, wait)
        await self._book.failed(self._owner, number, now, now + wait, problem)

    async def listed(self) -> AlertList:
        """Everything about alerts that may be shown."""
        kinds = {name: one.settings.kind.value for name, one in self._senders.items()}
        found = await list_alerts(self._book, kinds)
        return structs.replace(found, rules=self._settings.rules)

    async def test(self, target: str) -> AlertTestResult:
        """Send a target something harmless, now; NoSuch if it is not in the settings."""
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
