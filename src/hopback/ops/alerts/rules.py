"""Decide which alerts are firing and which notices have to be sent.

`decide_alerts` is a pure function. It takes the state of the brokers, the rules, the known alerts
and the time. It returns the alerts to store and to delete, and the notices. If the caller stores
the decision in one transaction and sends the notices afterwards, every notice is sent at least
once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from hopback.ops.alerts.quiet import parse_quiet
from hopback.ops.alerts.values import (
    Alert,
    AlertKey,
    AlertKind,
    AlertNotice,
    AlertRule,
    AlertState,
    ToldState,
)
from hopback.ops.contract.values import Job, JobState, Moment
from hopback.text import one_line, span_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hopback.ops.alerts.settings import AlertSettings
    from hopback.ops.contract.surveys import ErrorGroup


_LONGEST_TEXT = 300  # characters of an error in a notice, which may be read on a phone
# firing alerts in a notice, and the same number of resolved ones. The page shows all.
_MOST_IN_NOTICE = 50
# seconds (one week) for which resolved alerts are shown, so that they can be reviewed weekly
_KEPT_S = 7 * 86_400.0
_STOPPED = {JobState.FAILED: "has failed", JobState.INTERRUPTED: "was interrupted"}


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """The current state of a dead-letter queue. Unknown values are None.

    `past` contains earlier depths, oldest first. `oldest` is when the oldest surveyed message
    failed. `new_errors` were found by surveys. `unconsumed` are the origins that have lost their
    consumers.
    """

    queue: str
    depth: int | None
    past: tuple[tuple[float, int], ...] = ()
    oldest: float | None = None
    new_errors: tuple[ErrorGroup, ...] = ()
    held_back: int | None = None
    unconsumed: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class AlertInput:
    """The current state of a broker that responds. Alerts for other brokers do not change."""

    broker: str
    queues: tuple[QueueSeen, ...] = ()
    jobs: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class AlertDecision:
    """The alerts to store, the ids of alerts to delete, and the notices to send."""

    changed: tuple[Alert, ...] = ()
    forgotten: tuple[str, ...] = ()
    notices: tuple[AlertNotice, ...] = ()


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A condition that is met, and for how many seconds it is known to have been met."""

    text: str
    held_for: float = 0.0


def decide_alerts(
    settings: AlertSettings,
    seen: Iterable[AlertInput],
    known: Iterable[Alert],
    now: float,
    served: Sequence[str] = (),
) -> AlertDecision:
    """Decide how alerts change and which notices are sent.

    `served` contains the names of all brokers of the service, including those that do not respond.
    Alerts without a broker name are assigned to the first one. Alerts for brokers that are no
    longer served are resolved.
    """
    rules = settings.rules
    by_name = {rule.name: rule for rule in rules}
    brokers = {each.broker: each for each in seen}
    before = {alert.id: alert for alert in known}
    held, unknown = _find_conditions(rules, brokers.values(), now)
    after: dict[str, Alert | None] = {}
    for alert in before.values():
        if served and not alert.broker and "" not in served:
            alert = replace(alert, broker=served[0])  # noqa: PLW2901
        rule = None if served and alert.broker not in served else by_name.get(alert.rule)
        after[alert.id] = _follow(alert, rule, held, unknown, brokers, now, settings)
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
    for target in settings.targets:
        told, notice = _notice(target.name, by_name, after, held, now, settings)
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


def _begin(rule: AlertRule, key: AlertKey, sighting: _Sighting, now: float) -> Alert:
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
    """Return for how many seconds the condition must be met until the alert fires."""
    return rule.older_than_seconds if rule.kind is AlertKind.OLDEST_AGE else rule.for_seconds


def _follow(
    alert: Alert,
    rule: AlertRule | None,
    held: Mapping[AlertKey, _Sighting],
    unknown: frozenset[tuple[str, str, str]],
    brokers: Mapping[str, AlertInput],
    now: float,
    settings: AlertSettings,
) -> Alert | None:
    """Return the new state of the alert, or None to delete it."""
    sighting = held.get(alert.key)
    if sighting is not None and rule is not None:
        if alert.state is AlertState.PENDING:
            if max(now - alert.since, sighting.held_for) < _patience(rule):
                return alert
            return replace(alert, state=AlertState.FIRING, fired_at=Moment(now), text=sighting.text)
        resolved = alert.resolved_at
        untold = any(told.state is AlertState.FIRING for told in alert.told.values())
        if resolved is not None and untold and now - resolved < settings.wait_seconds:
            # No notice has reported that the alert was resolved, so it is still the same alert.
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
    held: Mapping[AlertKey, _Sighting],
    now: float,
    settings: AlertSettings,
) -> tuple[dict[str, Alert], AlertNotice | None]:
    """Return the alerts with the notice recorded, and the notice if one is due for the target."""
    firing: list[Alert] = []
    resolved: list[Alert] = []
    is_due, moment = False, datetime.fromtimestamp(now, ZoneInfo(settings.time_zone))
    for alert in alerts.values():
        if alert is None or alert.state is AlertState.PENDING:
            continue
        rule = rules.get(alert.rule)
        if rule is not None:
            quiet = settings.quiet if rule.quiet is None else rule.quiet
            if any(parse_quiet(each).holds(moment) for each in quiet):
                continue
        told = alert.told.get(target)
        if alert.state is AlertState.RESOLVED:
            if told is not None and told.state is AlertState.FIRING:
                resolved.append(alert)
                is_due |= now - (alert.resolved_at or now) >= settings.wait_seconds
            continue
        if rule is None or (rule.targets and target not in rule.targets):
            continue
        reminded = told is not None and 0 < settings.remind_hours * 3600 <= now - told.at
        if told is None or told.state is not AlertState.FIRING or reminded:
            sighting = held.get(alert.key)
            firing.append(alert if sighting is None else replace(alert, text=sighting.text))
            is_due |= reminded or now - (alert.fired_at or now) >= settings.wait_seconds
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


def _find_conditions(
    rules: Iterable[AlertRule], seen: Iterable[AlertInput], now: float
) -> tuple[dict[AlertKey, _Sighting], frozenset[tuple[str, str, str]]]:
    """Return the conditions that are met, and the queues for which a rule cannot be evaluated."""
    held: dict[AlertKey, _Sighting] = {}
    unknown: set[tuple[str, str, str]] = set()
    brokers = tuple(seen)
    for rule in rules:
        for broker in brokers:
            if rule.kind is AlertKind.JOB_STOPPED:
                for job in broker.jobs:
                    if job.state in _STOPPED and rule.covers(broker.broker, job.queue):
                        why = f": {_short(job.state_reason)}" if job.state_reason else ""
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
    return [("", _Sighting(f"{growth:,} dead letters more than {span_text(now - at)} ago"))]


def _see_new_fingerprint(rule: AlertRule, queue: QueueSeen, now: float) -> _Found:
    if queue.depth is None:
        return None
    return [
        (one.fingerprint, _Sighting(f"new failure: {_short(one.error or one.message)}"))
        for one in queue.new_errors
        if now - (one.first_seen or 0.0) <= rule.within_seconds
    ]


def _see_oldest_age(rule: AlertRule, queue: QueueSeen, now: float) -> _Found:
    if queue.depth is None:
        return None
    if queue.depth == 0:
        return ()
    limit = span_text(rule.older_than_seconds)
    if queue.oldest is None:
        return [("", _Sighting(f"not empty, limit {limit}"))]
    age = max(now - queue.oldest, 0.0)
    if age < rule.older_than_seconds:
        return ()
    text = f"the oldest dead letter failed {span_text(age)} ago, more than {limit}"
    return [("", _Sighting(text, age))]


def _see_held_back(rule: AlertRule, queue: QueueSeen, _now: float) -> _Found:
    if queue.held_back is None:
        return None
    if queue.held_back <= rule.above:
        return ()
    return [("", _Sighting(f"the broker holds back {queue.held_back:,} messages"))]


def _see_consumer_gone(_rule: AlertRule, queue: QueueSeen, _now: float) -> _Found:
    if queue.unconsumed is None:
        return None
    return [(name, _Sighting(f"{name!r} has lost its consumers")) for name in queue.unconsumed]


_SEE = {
    AlertKind.DEPTH: _see_depth,
    AlertKind.GROWTH: _see_growth,
    AlertKind.NEW_FINGERPRINT: _see_new_fingerprint,
    AlertKind.OLDEST_AGE: _see_oldest_age,
    AlertKind.HELD_BACK: _see_held_back,
    AlertKind.CONSUMER_GONE: _see_consumer_gone,
}


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}…"
