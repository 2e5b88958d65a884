"""When to call somebody: rules over what is seen of dead letters, and what follows from them. Pure.

`decide_alerts` takes what was seen, the rules, the alerts that are known and the time. It answers which
alerts change, which are forgotten and who is to be told what. A caller that keeps that
in one transaction and sends afterwards tells everything at least once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping  # noqa: TC003  msgspec reads it at run time
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias
from urllib.parse import quote

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr, replace

from hopback.broker.named_brokers import broker_path
from hopback.ops.contract.values import JobState, Moment
from hopback.text import one_line, text_matches
from hopback.topology.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hopback.ops.contract.values import Job

_LONGEST_TEXT = 300  # of an error in a line that somebody reads on a phone
_MOST_IN_NOTICE = 50  # nobody reads more in one message; the page has them all
_KEPT_S = 7 * 86_400.0  # resolved alerts are shown for a week: long enough for the review on Monday
_STOPPED = {JobState.FAILED: "has failed", JobState.INTERRUPTED: "was interrupted"}

_Name = Annotated[str, Meta(min_length=1, max_length=100)]
_Pattern = Annotated[str, Meta(min_length=1, max_length=255)]
_Seconds = Annotated[float, Meta(ge=0, le=30 * 86_400)]
_Key: TypeAlias = tuple[str, str, str, str]


class AlertKind(StrEnum):
    """What a rule looks at."""

    DEPTH = "depth"
    """A dead-letter queue holds more than `above` messages."""
    GROWTH = "growth"
    """It got more than `above` messages more within `within_seconds`."""
    NEW_FINGERPRINT = "new-fingerprint"
    """It holds a failure that was first seen within `within_seconds`."""
    OLDEST_AGE = "oldest-age"
    """A message in it failed, or the queue has not been empty, for longer than `older_than_seconds`."""
    JOB_STOPPED = "job-stopped"
    """A re-drive or a discard has failed or was interrupted, and can be resumed."""
    HELD_BACK = "held-back"
    """The broker holds back more than `above` messages on their way to or from its queues."""
    CONSUMER_GONE = "consumer-gone"
    """A queue whose messages end here has no consumer."""


class AlertRule(Struct, frozen=True, forbid_unknown_fields=True):
    """One rule. `queues` are patterns of dead-letter queues, in which `*` stands for any characters.

    `broker` limits it to one broker; empty means every one. What it says must hold for `for_seconds` before
    anybody is told. `targets` are told, all if none are named. `quiet` replaces the quiet times of all rules.
    """

    name: _Name
    kind: AlertKind
    queues: tuple[_Pattern, ...] = ("*",)
    broker: Annotated[str, Meta(max_length=100)] = ""
    above: Annotated[int, Meta(ge=0)] = 0
    within_seconds: Annotated[float, Meta(ge=10, le=30 * 86_400)] = 600.0
    older_than_seconds: _Seconds = 3600.0
    for_seconds: _Seconds = 0.0
    targets: tuple[_Name, ...] = ()
    quiet: tuple[str, ...] | None = None

    def covers(self, broker: str, queue: str) -> bool:
        """Whether it is about that queue."""
        if self.broker and broker != self.broker:
            return False
        return any(text_matches(pattern, queue) for pattern in self.queues)


_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_QUIET = re.compile(
    r"(?P<days>[a-z]{3}(?:[ ,]+[a-z]{3})*)?"
    r" *(?:(?P<h1>[0-2]\d):(?P<m1>[0-5]\d) *- *(?P<h2>[0-2]\d):(?P<m2>[0-5]\d))?"
)
_DAY_MIN = 24 * 60  # minutes


@dataclass(frozen=True, slots=True)
class QuietTime:
    """Minutes of the day, on the days on which they begin; `end` before `start` is on the next day."""

    days: frozenset[int]
    start: int
    end: int

    def holds(self, moment: datetime) -> bool:
        """Whether that moment lies in it."""
        minute = moment.hour * 60 + moment.minute
        yesterday = (moment - timedelta(days=1)).weekday()
        if self.start < self.end:
            return moment.weekday() in self.days and self.start <= minute < self.end
        began_today = moment.weekday() in self.days and minute >= self.start
        return began_today or (yesterday in self.days and minute < self.end)


def parse_quiet(text: str) -> QuietTime:
    """`22:00-06:00`, `sat sun` or `fri 18:00-24:00`; ValueError says what was expected."""
    found = _QUIET.fullmatch(text.strip().lower())
    days = re.findall("[a-z]{3}", found["days"] or "") if found is not None else []
    if found is None or not text.strip() or not set(days) <= set(_DAYS):
        raise ValueError(f"expected `22:00-06:00`, `sat sun` or `fri 18:00-24:00`, got {text!r}")
    start, end = 0, _DAY_MIN
    if found["h1"] is not None:
        start = int(found["h1"]) * 60 + int(found["m1"])
        end = int(found["h2"]) * 60 + int(found["m2"])
    if start >= _DAY_MIN or end > _DAY_MIN:
        raise ValueError(f"expected times from 00:00 to 24:00, got {text!r}")
    wanted = days or _DAYS
    return QuietTime(frozenset(map(_DAYS.index, wanted)), start, end)


@dataclass(frozen=True, slots=True)
class FingerprintSeen:
    """One kind of failure in a queue, and since when it is known."""

    fingerprint: str
    error: str
    first_seen: float


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """One dead-letter queue as it is now; None where nobody knows.

    `past` has earlier depths, the oldest first. `oldest` is when its oldest message failed, as far as
    somebody looked. `unconsumed` are queues of origin that lost their consumers.
    """

    queue: str
    depth: int | None
    past: tuple[tuple[float, int], ...] = ()
    oldest: float | None = None
    fingerprints: tuple[FingerprintSeen, ...] = ()
    held_back: int | None = None
    unconsumed: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class BrokerSeen:
    """What is seen of one broker. One that does not answer is not seen: its alerts stay as they are."""

    broker: str
    queues: tuple[QueueSeen, ...] = ()
    jobs: tuple[Job, ...] = ()


class AlertState(StrEnum):
    """Where an alert stands."""

    PENDING = "pending"
    """Its rule holds, but not yet for long enough."""
    FIRING = "firing"
    RESOLVED = "resolved"


class ToldState(Struct, frozen=True, rename="camel"):
    """What somebody was told last of an alert, and when."""

    state: AlertState
    at: Moment


class Alert(Struct, frozen=True, rename="camel", kw_only=True):
    """Something that a rule found. `text` says what, `since` from when on; `url` is its page.

    `subject` tells several of one queue apart: a job, a fingerprint, a queue of origin. `told` says, by
    target, what was handed to the outbox for it.
    """

    id: str
    rule: str
    kind: AlertKind
    broker: str = ""
    queue: str
    subject: str = ""
    state: AlertState
    text: str
    since: Moment
    fired_at: Moment | None = None
    resolved_at: Moment | None = None
    told: Mapping[str, ToldState] = field(default_factory=dict)
    url: str = ""

    def __post_init__(self) -> None:
        way = f"/jobs/{quote(self.subject, safe='')}"
        if self.kind is not AlertKind.JOB_STOPPED:
            way = f"/queues/{quote(self.queue, safe='')}"
        force_setattr(self, "url", (broker_path(self.broker) if self.broker else "") + way)

    @property
    def key(self) -> _Key:
        """What it is about: at most one open alert has it."""
        return self.rule, self.broker, self.queue, self.subject


class AlertNotice(Struct, frozen=True, rename="camel"):
    """One message to one target: what fires, what is resolved, and how many more there are of both.

    `id` is the same however often it is sent, so that a receiver can tell a copy.
    """

    id: str
    target: str
    created_at: Moment
    firing: tuple[Alert, ...] = ()
    resolved: tuple[Alert, ...] = ()
    more: int = 0
    is_test: bool = False


class AlertTargetView(Struct, frozen=True, rename="camel"):
    """Who is told, as far as may be shown: never an address or a secret."""

    name: str
    kind: str
    waiting: int = 0
    sent_at: Moment | None = None
    problem: str = ""


class AlertList(Struct, frozen=True, rename="camel"):
    """The alerts that the caller may see, those that fire first; for admins with rules and targets."""

    items: tuple[Alert, ...]
    total: int
    rules: tuple[AlertRule, ...] = ()
    targets: tuple[AlertTargetView, ...] = ()


class AlertTestResult(Struct, frozen=True, rename="camel"):
    """Whether a target took a test message; `problem` says why not."""

    target: str
    delivered: bool
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AlertManners:
    """How people are told: a message waits `wait_s` for others to join it; `remind_s` 0 never repeats.

    `quiet` holds for rules without quiet times of their own, in `zone`.
    """

    targets: tuple[str, ...]
    zone: tzinfo
    wait_s: float = 30.0
    remind_s: float = 0.0
    quiet: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AlertDecision:
    """What follows: `changed` alerts are written, `forgotten` ids deleted, `notices` sent."""

    changed: tuple[Alert, ...] = ()
    forgotten: tuple[str, ...] = ()
    notices: tuple[AlertNotice, ...] = ()


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A rule that holds. `held_for` is how long it is known to hold, where something tells."""

    text: str
    held_for: float = 0.0


def decide_alerts(
    rules: Sequence[AlertRule],
    seen: Iterable[BrokerSeen],
    known: Iterable[Alert],
    now: float,
    manners: AlertManners,
    served: Sequence[str] = (),
) -> AlertDecision:
    """What becomes of the alerts, and who is told.

    `served` names the brokers that there are, seen or not. The first takes over what was known of it before
    it had a name; what is known of one that is served no longer is over.
    """
    by_name = {rule.name: rule for rule in rules}
    brokers = {each.broker: each for each in seen}
    before = {alert.id: alert for alert in known}
    held, unknown = _look(rules, brokers.values(), now)
    after: dict[str, Alert | None] = {}
    for alert in before.values():
        if served and not alert.broker and "" not in served:
            alert = replace(alert, broker=served[0])  # noqa: PLW2901  the same under its new name
        rule = None if served and alert.broker not in served else by_name.get(alert.rule)
        after[alert.id] = _follow(alert, rule, held, unknown, brokers, now, manners)
    open_keys = {
        alert.key
        for alert in after.values()
        if alert is not None and alert.state is not AlertState.RESOLVED
    }
    for key, sighting in held.items():
        if key not in open_keys:
            begun = _begin(by_name[key[0]], key, sighting, now)
            after[begun.id] = begun
    notices = []
    for target in manners.targets:
        told, notice = _notice(target, by_name, after, held, now, manners)
        after |= told
        if notice is not None:
            notices.append(notice)
    gone = [
        each
        for each, alert in after.items()
        if alert is None or (alert.resolved_at is not None and now - alert.resolved_at > _KEPT_S)
    ]
    changed = (
        alert
        for each, alert in after.items()
        if alert is not None and alert != before.get(each) and each not in gone
    )
    forgotten = tuple(each for each in gone if each in before)
    return AlertDecision(tuple(changed), forgotten, tuple(notices))


def _begin(rule: AlertRule, key: _Key, sighting: _Sighting, now: float) -> Alert:
    since = now - sighting.held_for
    fires = sighting.held_for >= _patience(rule)
    text = "\0".join((*key, repr(now)))
    return Alert(
        id=f"a-{hashlib.blake2b(text.encode(errors='replace'), digest_size=8).hexdigest()}",
        rule=rule.name,
        kind=rule.kind,
        broker=key[1],
        queue=key[2],
        subject=key[3],
        state=AlertState.FIRING if fires else AlertState.PENDING,
        text=sighting.text,
        since=Moment(since),
        fired_at=Moment(now) if fires else None,
    )


def _patience(rule: AlertRule) -> float:
    """How long it must hold before it fires."""
    return rule.older_than_seconds if rule.kind is AlertKind.OLDEST_AGE else rule.for_seconds


def _follow(
    alert: Alert,
    rule: AlertRule | None,
    held: Mapping[_Key, _Sighting],
    unknown: frozenset[tuple[str, str, str]],
    brokers: Mapping[str, BrokerSeen],
    now: float,
    manners: AlertManners,
) -> Alert | None:
    """The alert after this look; None if it may be forgotten."""
    sighting = held.get(alert.key)
    if sighting is not None and rule is not None:
        if alert.state is AlertState.PENDING:
            if max(now - alert.since, sighting.held_for) < _patience(rule):
                return alert
            return replace(alert, state=AlertState.FIRING, fired_at=Moment(now), text=sighting.text)
        resolved = alert.resolved_at
        untold = any(told.state is AlertState.FIRING for told in alert.told.values())
        if resolved is not None and untold and now - resolved < manners.wait_s:
            # Nobody was told that it was over: it was not.
            return replace(alert, state=AlertState.FIRING, resolved_at=None)
        return alert
    if rule is not None and (
        alert.broker not in brokers or (alert.rule, alert.broker, alert.queue) in unknown
    ):
        return alert
    match alert.state:
        case AlertState.PENDING:
            return None
        case AlertState.FIRING:
            return replace(alert, state=AlertState.RESOLVED, resolved_at=Moment(now))
        case AlertState.RESOLVED:
            return alert


def _notice(
    target: str,
    rules: Mapping[str, AlertRule],
    alerts: Mapping[str, Alert | None],
    held: Mapping[_Key, _Sighting],
    now: float,
    manners: AlertManners,
) -> tuple[dict[str, Alert], AlertNotice | None]:
    """What the target is to be told now, if anything, and the alerts with that written down."""
    firing: list[Alert] = []
    resolved: list[Alert] = []
    is_due, moment = False, datetime.fromtimestamp(now, manners.zone)
    for alert in alerts.values():
        if alert is None or alert.state is AlertState.PENDING:
            continue
        rule = rules.get(alert.rule)
        if rule is not None:
            quiet = manners.quiet if rule.quiet is None else rule.quiet
            if any(parse_quiet(each).holds(moment) for each in quiet):
                continue
        told = alert.told.get(target)
        if alert.state is AlertState.RESOLVED:
            if told is not None and told.state is AlertState.FIRING:
                resolved.append(alert)
                is_due |= now - (alert.resolved_at or now) >= manners.wait_s
            continue
        if rule is None or (rule.targets and target not in rule.targets):
            continue
        reminded = told is not None and 0 < manners.remind_s <= now - told.at
        if told is None or told.state is not AlertState.FIRING or reminded:
            sighting = held.get(alert.key)
            firing.append(alert if sighting is None else replace(alert, text=sighting.text))
            is_due |= reminded or now - (alert.fired_at or now) >= manners.wait_s
    if not is_due:
        return {}, None
    changes = [*firing, *resolved]
    updated = {
        each.id: replace(each, told={**each.told, target: ToldState(each.state, Moment(now))})
        for each in changes
    }
    text = "\0".join((target, repr(now), *(f"{each.id} {each.state}" for each in changes)))
    notice = AlertNotice(
        f"n-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}",
        target,
        Moment(now),
        tuple(firing[:_MOST_IN_NOTICE]),
        tuple(resolved[:_MOST_IN_NOTICE]),
        max(len(firing) - _MOST_IN_NOTICE, 0) + max(len(resolved) - _MOST_IN_NOTICE, 0),
    )
    return updated, notice


def _look(
    rules: Iterable[AlertRule], seen: Iterable[BrokerSeen], now: float
) -> tuple[dict[_Key, _Sighting], frozenset[tuple[str, str, str]]]:
    """Where rules hold, and of which queues nobody can tell whether they do."""
    held: dict[_Key, _Sighting] = {}
    unknown: set[tuple[str, str, str]] = set()
    brokers = tuple(seen)
    for rule in rules:
        for broker in brokers:
            if rule.kind is AlertKind.JOB_STOPPED:
                for job in broker.jobs:
                    if job.state in _STOPPED and rule.covers(broker.broker, job.queue):
                        why = f": {_short(job.reason)}" if job.reason else ""
                        text = f"the {job.kind} {_STOPPED[job.state]}{why}"
                        held[rule.name, broker.broker, job.queue, job.id] = _Sighting(text)
                continue
            for queue in broker.queues:
                if not rule.covers(broker.broker, queue.queue):
                    continue
                found = _SEE[rule.kind](rule, queue, now)
                if found is None:
                    unknown.add((rule.name, broker.broker, queue.queue))
                    continue
                for subject, sighting in found:
                    held[rule.name, broker.broker, queue.queue, subject] = sighting
    return held, frozenset(unknown)


_Found: TypeAlias = "Iterable[tuple[str, _Sighting]] | None"


def _see_depth(rule: AlertRule, queue: QueueSeen, _now: float) -> _Found:
    if queue.depth is None:
        return None
    if queue.depth <= rule.above:
        return ()
    return [("", _Sighting(f"{queue.depth:,} dead letters, more than {rule.above:,}"))]


def _see_growth(rule: AlertRule, queue: QueueSeen, now: float) -> _Found:
    if queue.depth is None:
        return None
    recent = [(at, depth) for at, depth in queue.past if now - at <= rule.within_seconds]
    if not recent:
        return ()
    at, lowest = min(recent, key=lambda sample: sample[1])
    growth = queue.depth - lowest
    if growth <= rule.above:
        return ()
    return [("", _Sighting(f"{growth:,} dead letters more than {_span(now - at)} ago"))]


def _see_new_fingerprint(rule: AlertRule, queue: QueueSeen, now: float) -> _Found:
    if queue.depth is None:
        return None
    return [
        (one.fingerprint, _Sighting(f"a failure that is new here: {_short(one.error)}"))
        for one in queue.fingerprints
        if now - one.first_seen <= rule.within_seconds
    ]


def _see_oldest_age(rule: AlertRule, queue: QueueSeen, now: float) -> _Found:
    if queue.depth is None:
        return None
    if queue.depth == 0:
        return ()
    limit = _span(rule.older_than_seconds)
    if queue.oldest is None:
        return [("", _Sighting(f"dead letters rest here; {limit} is the limit"))]
    age = max(now - queue.oldest, 0.0)
    if age < rule.older_than_seconds:
        return ()
    text = f"the oldest dead letter failed {_span(age)} ago, more than {limit}"
    return [("", _Sighting(text, age))]


def _see_held_back(rule: AlertRule, queue: QueueSeen, _now: float) -> _Found:
    if queue.held_back is None:
        return None
    if queue.held_back <= rule.above:
        return ()
    return [("", _Sighting(f"the broker holds back {queue.held_back:,} messages around it"))]


def _see_consumer_gone(_rule: AlertRule, queue: QueueSeen, _now: float) -> _Found:
    if queue.unconsumed is None:
        return None
    return [(name, _Sighting(f"{name!r} has no consumer any more")) for name in queue.unconsumed]


_SEE = {
    AlertKind.DEPTH: _see_depth,
    AlertKind.GROWTH: _see_growth,
    AlertKind.NEW_FINGERPRINT: _see_new_fingerprint,
    AlertKind.OLDEST_AGE: _see_oldest_age,
    AlertKind.HELD_BACK: _see_held_back,
    AlertKind.CONSUMER_GONE: _see_consumer_gone,
}


def _span(seconds: float) -> str:
    """A span for people, in whole seconds below an hour and whole minutes above."""
    step = 60 if seconds >= 3600 else 1
    return format_duration(max(round(seconds / step) * step, 1) * 1000)


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}…"
