"""Which alerts fire, who is notified and when: a pure decision over virtual time."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hopback.ops.alerts.quiet import parse_quiet
from hopback.ops.alerts.rules import (
    AlertDecision,
    AlertInput,
    QueueSeen,
    decide_alerts,
)
from hopback.ops.alerts.settings import AlertSettings, AlertTargetKind, AlertTargetSettings
from hopback.ops.alerts.values import Alert, AlertKind, AlertNotice, AlertRule, AlertState
from hopback.ops.contract.codec import encode, from_json
from hopback.ops.contract.requests import JobKind
from hopback.ops.contract.surveys import ErrorGroup
from hopback.ops.contract.values import Job, JobState, Moment

_NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()  # a Monday
_DEEP = AlertRule("deep", AlertKind.DEPTH, above=10)


def _target(name: str) -> AlertTargetSettings:
    return AlertTargetSettings(name, AlertTargetKind.WEBHOOK)


def _error(first_seen: float) -> ErrorGroup:
    return ErrorGroup(
        fingerprint="f", error="KeyError", message="", reason="", count=1,
        first_seen=Moment(first_seen),
    )  # fmt: skip


_OPS = AlertSettings(wait_seconds=0.0, targets=(_target("ops"),))


class _Watch:
    """Remembers the alerts from one look to the next, as a book does."""

    def __init__(self, *rules: AlertRule, settings: AlertSettings = _OPS) -> None:
        self.rules = rules
        self.settings = settings
        self.alerts: dict[str, Alert] = {}
        self.notices: list[AlertNotice] = []

    def look(self, now: float, *queues: QueueSeen, jobs: tuple[Job, ...] = ()) -> AlertDecision:
        return self.look_at(now, AlertInput("", queues, jobs))

    def look_at(
        self, now: float, *brokers: AlertInput, served: tuple[str, ...] = ()
    ) -> AlertDecision:
        known = self.alerts.values()
        settings = structs.replace(self.settings, rules=self.rules)
        decision = decide_alerts(settings, brokers, known, now, served)
        for alert in decision.changed:
            self.alerts[alert.id] = from_json(Alert, encode(alert))
        for gone in decision.forgotten:
            del self.alerts[gone]
        self.notices += decision.notices
        return decision

    @property
    def firing(self) -> list[str]:
        """The texts of those that fire."""
        return [one.text for one in self.alerts.values() if one.state is AlertState.FIRING]

    @property
    def said(self) -> list[tuple[int, int]]:
        """Of each notice how many fire and how many are resolved."""
        return [(len(one.firing), len(one.resolved)) for one in self.notices]


def test_depth_alert_fires_once_and_resolves_once() -> None:
    """The alert links to the page of the queue."""
    watch = _Watch(_DEEP)
    for second in range(5):
        watch.look(_NOW + second, QueueSeen("a/b.dlq", 11))
    assert watch.firing == ["11 dead letters, more than 10"]
    assert next(iter(watch.alerts.values())).url == "/queues/a%2Fb.dlq"
    for second in range(5, 9):
        watch.look(_NOW + second, QueueSeen("a/b.dlq", 10))
    assert watch.firing == []
    assert watch.said == [(1, 0), (0, 1)]


@pytest.mark.parametrize(
    ("rule", "holds", "does_not"),
    [
        (_DEEP, QueueSeen("q", 11), QueueSeen("q", 10)),
        (
            AlertRule("r", AlertKind.GROWTH, above=5, within_seconds=60),
            QueueSeen("q", 20, ((_NOW - 50, 14),)),
            QueueSeen("q", 20, ((_NOW - 70, 1), (_NOW - 50, 15))),
        ),
        (
            AlertRule("r", AlertKind.NEW_FINGERPRINT, within_seconds=60),
            QueueSeen("q", 1, new_errors=(_error(_NOW - 10),)),
            QueueSeen("q", 1, new_errors=(_error(_NOW - 61),)),
        ),
        (
            AlertRule("r", AlertKind.OLDEST_AGE, older_than_seconds=60),
            QueueSeen("q", 1, oldest=_NOW - 61),
            QueueSeen("q", 1, oldest=_NOW - 59),
        ),
        (
            AlertRule("r", AlertKind.HELD_BACK),
            QueueSeen("q", 0, held_back=1),
            QueueSeen("q", 0, held_back=0),
        ),
        (
            AlertRule("r", AlertKind.CONSUMER_GONE),
            QueueSeen("q", 0, unconsumed=("orders",)),
            QueueSeen("q", 0, unconsumed=()),
        ),
    ],
    ids=lambda value: value.kind.value if isinstance(value, AlertRule) else "",
)
def test_rule_fires_only_beyond_its_bound_and_for_its_queue(
    rule: AlertRule, holds: QueueSeen, does_not: QueueSeen
) -> None:
    watch = _Watch(rule)
    watch.look(_NOW, does_not)
    assert watch.firing == []
    watch.look(_NOW, holds)
    assert len(watch.firing) == 1
    other = _Watch(AlertRule("r", rule.kind, queues=("other.*",)))
    other.look(_NOW, holds)
    assert other.alerts == {}


def test_failed_job_alert_fires_until_job_resumes() -> None:
    """The alert links to the job. A cancelled job does not fire an alert."""
    job = Job(
        id="j-1",
        kind=JobKind.REDRIVE,
        queue="q",
        state=JobState.FAILED,
        state_reason="the target is full",
        created=Moment(0),
        updated=Moment(0),
    )
    watch = _Watch(AlertRule("r", AlertKind.JOB_STOPPED))
    watch.look(_NOW, jobs=(job,))
    assert watch.firing == ["the re-drive has failed: the target is full"]
    assert next(iter(watch.alerts.values())).url == "/jobs/j-1"
    watch.look(_NOW + 1)
    assert watch.firing == []


def test_unreachable_broker_or_unknown_depth_keeps_alert_firing() -> None:
    """A deleted queue resolves its alert."""
    watch = _Watch(_DEEP)
    watch.look(_NOW, QueueSeen("q", 11))
    watch.look_at(_NOW + 1)
    watch.look(_NOW + 2, QueueSeen("q", None))
    assert len(watch.firing) == 1
    watch.look(_NOW + 3)
    assert watch.firing == []


def test_renamed_broker_keeps_its_alerts() -> None:
    """They are sent once, link to the page of the new name and resolve with their cause."""
    watch = _Watch(_DEEP)
    watch.look(_NOW, QueueSeen("q", 11))
    names = ("north", "south")
    watch.look_at(_NOW + 1, served=names)  # neither answers
    ((alert,), said) = watch.alerts.values(), list(watch.said)
    assert (alert.broker, alert.url, alert.state) == ("north", "/brokers/north/queues/q", "firing")
    deep, empty = (AlertInput("north", (QueueSeen("q", depth),)) for depth in (11, 0))
    watch.look_at(_NOW + 2, deep, served=names)
    assert (len(watch.alerts), watch.said) == (1, said)
    watch.look_at(_NOW + 3, empty, served=names)
    assert (watch.firing, watch.said) == ([], [(1, 0), (0, 1)])


def test_alerts_resolve_when_broker_is_no_longer_served() -> None:
    watch = _Watch(_DEEP)
    watch.look_at(_NOW, AlertInput("south", (QueueSeen("q", 11),)), served=("north", "south"))
    watch.look_at(_NOW + 1, served=("north", "south"))
    assert len(watch.firing) == 1
    watch.look_at(_NOW + 2, served=("north",))
    assert (watch.firing, watch.said) == ([], [(1, 0), (0, 1)])


def test_rule_with_broker_ignores_same_queue_of_another_broker() -> None:
    watch = _Watch(AlertRule("deep", AlertKind.DEPTH, above=10, broker="production"))
    deep = QueueSeen("q", 11)
    watch.look_at(_NOW, AlertInput("staging", (deep,)), AlertInput("production", (deep,)))
    assert [one.broker for one in watch.alerts.values()] == ["production"]


def test_condition_shorter_than_for_duration_sends_no_notice() -> None:
    watch = _Watch(AlertRule("deep", AlertKind.DEPTH, above=10, for_seconds=60))
    watch.look(_NOW, QueueSeen("q", 11))
    watch.look(_NOW + 59, QueueSeen("q", 11))
    assert [one.state for one in watch.alerts.values()] == [AlertState.PENDING]
    watch.look(_NOW + 59.5, QueueSeen("q", 0))
    assert watch.alerts == {}
    watch.look(_NOW + 100, QueueSeen("q", 11))
    watch.look(_NOW + 160, QueueSeen("q", 11))
    assert len(watch.firing) == 1
    assert watch.said == [(1, 0)]


def test_unknown_age_counts_from_first_look_at_nonempty_queue() -> None:
    watch = _Watch(AlertRule("old", AlertKind.OLDEST_AGE, older_than_seconds=100))
    watch.look(_NOW, QueueSeen("q", 1))
    watch.look(_NOW + 99, QueueSeen("q", 1))
    assert watch.firing == []
    watch.look(_NOW + 100, QueueSeen("q", 5))
    assert watch.firing == ["not empty, limit 100 s"]


def test_alerts_that_fire_together_are_sent_as_one_notice() -> None:
    """Alerts that resolve within the group wait are not sent."""
    watch = _Watch(_DEEP, settings=structs.replace(_OPS, wait_seconds=30))
    watch.look(_NOW, QueueSeen("a", 11))
    watch.look(_NOW + 20, QueueSeen("a", 11), QueueSeen("b", 12))
    assert watch.notices == []
    watch.look(_NOW + 30, QueueSeen("a", 11), QueueSeen("b", 99))
    assert watch.said == [(2, 0)]
    assert [one.text for one in watch.notices[0].firing][1] == "99 dead letters, more than 10"
    short = _Watch(_DEEP, settings=structs.replace(_OPS, wait_seconds=30))
    short.look(_NOW, QueueSeen("a", 11))
    short.look(_NOW + 20, QueueSeen("a", 0))
    short.look(_NOW + 60, QueueSeen("a", 0))
    assert short.notices == []


def test_depth_that_swings_around_bound_sends_one_notice() -> None:
    watch = _Watch(_DEEP, settings=structs.replace(_OPS, wait_seconds=30))
    watch.look(_NOW, QueueSeen("a", 11))
    watch.look(_NOW + 30, QueueSeen("a", 11))
    for second in range(40, 200, 10):
        watch.look(_NOW + second, QueueSeen("a", 10 + (second // 10) % 2))
    assert watch.said == [(1, 0)]
    assert len(watch.alerts) == 1


def test_quiet_times_delay_notices_until_they_end() -> None:
    """Alerts that resolve during the quiet time are not sent."""
    night = datetime(2026, 3, 2, 23, 0, tzinfo=UTC).timestamp()
    watch = _Watch(_DEEP, settings=structs.replace(_OPS, quiet=("22:00-06:00",)))
    watch.look(night, QueueSeen("a", 11), QueueSeen("b", 11))
    watch.look(night + 3600, QueueSeen("a", 11), QueueSeen("b", 0))
    assert watch.notices == []
    watch.look(night + 7 * 3600, QueueSeen("a", 11), QueueSeen("b", 0))
    assert watch.said == [(1, 0)]
    loud = _Watch(
        AlertRule("deep", AlertKind.DEPTH, above=10, quiet=()),
        settings=structs.replace(_OPS, quiet=("22:00-06:00",)),
    )
    loud.look(night, QueueSeen("a", 11))
    assert loud.said == [(1, 0)]


def test_firing_alert_is_repeated_after_repeat_interval() -> None:
    watch = _Watch(_DEEP, settings=structs.replace(_OPS, remind_hours=1))
    for minutes in range(0, 150, 10):
        watch.look(_NOW + minutes * 60, QueueSeen("a", 11))
    assert watch.said == [(1, 0)] * 3


def test_notice_is_sent_only_to_targets_of_its_rule() -> None:
    """A rule without targets notifies every target. Deleting a rule resolves its alerts."""
    targets = (_target("ops"), _target("chat"))
    both = structs.replace(_OPS, targets=targets)
    watch = _Watch(AlertRule("deep", AlertKind.DEPTH, targets=("chat",)), _DEEP, settings=both)
    watch.rules = (watch.rules[0], AlertRule("all", AlertKind.DEPTH))
    watch.look(_NOW, QueueSeen("a", 1))
    assert {one.target: len(one.firing) for one in watch.notices} == {"ops": 1, "chat": 2}
    watch.rules = (watch.rules[0],)
    watch.look(_NOW + 1, QueueSeen("a", 1))
    assert {one.target: len(one.resolved) for one in watch.notices[2:]} == {"ops": 1, "chat": 1}


def test_resolved_alerts_are_deleted_after_a_week() -> None:
    watch = _Watch(_DEEP)
    watch.look(_NOW, QueueSeen("a", 11))
    watch.look(_NOW + 1, QueueSeen("a", 0))
    watch.look(_NOW + 7 * 86_400, QueueSeen("a", 0))
    assert len(watch.alerts) == 1
    watch.look(_NOW + 7 * 86_400 + 2, QueueSeen("a", 0))
    assert watch.alerts == {}


def test_notice_names_at_most_50_alerts_and_counts_the_others() -> None:
    """All of them count as notified."""
    watch = _Watch(_DEEP)
    watch.look(_NOW, *(QueueSeen(f"q{number}", 11) for number in range(2000)))
    assert [(len(one.firing), one.more) for one in watch.notices] == [(50, 1950)]
    watch.look(_NOW + 1, *(QueueSeen(f"q{number}", 11) for number in range(2000)))
    assert len(watch.notices) == 1


_DEPTHS = st.lists(
    st.tuples(st.floats(0.1, 100), st.sampled_from([None, 0, 10, 11, 50])), min_size=1, max_size=30
)


@settings(max_examples=200, deadline=None)
@given(_DEPTHS, st.sampled_from([0.0, 30.0]), st.sampled_from([0.0, 45.0]))
def test_random_depths_send_firing_and_resolved_alternately(
    depths: list[tuple[float, int | None]], wait_s: float, for_s: float
) -> None:
    rule = AlertRule("deep", AlertKind.DEPTH, above=10, for_seconds=for_s)
    watch, now = _Watch(rule, settings=structs.replace(_OPS, wait_seconds=wait_s)), _NOW
    for step, depth in depths:
        now += step
        watch.look(now, QueueSeen("q", depth))
    for last in (0, 100, 200):
        watch.look(now + last, QueueSeen("q", 0))
    heard: dict[str, list[str]] = {}
    for notice in watch.notices:
        for alert in (*notice.firing, *notice.resolved):
            heard.setdefault(alert.id, []).append(alert.state)
    assert all(states == ["firing", "resolved"] for states in heard.values())
    assert all(first.id != second.id for first, second in pairwise(watch.notices))
    assert watch.firing == []


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22:00-06:00", ["2026-03-02 23:00", "2026-03-03 05:59"], ["2026-03-02 21:59"]),
        ("sat sun", ["2026-03-07 00:00", "2026-03-08 23:59"], ["2026-03-09 00:00"]),
        ("fri 18:00-08:00", ["2026-03-07 07:59"], ["2026-03-08 07:00", "2026-03-06 07:00"]),
        ("Mon, Tue 12:00-24:00", ["2026-03-03 23:59"], ["2026-03-04 13:00"]),
    ],
)
def test_quiet_times_parse_days_and_times(text: str, inside: list[str], outside: list[str]) -> None:
    """The days are those on which the time begins.

    An end before the beginning is on the next day.
    """
    quiet, zone = parse_quiet(text), ZoneInfo("Europe/Berlin")
    moments = {
        each: datetime.fromisoformat(each).replace(tzinfo=zone) for each in (*inside, *outside)
    }
    assert [each for each, moment in moments.items() if quiet.holds(moment)] == inside


@pytest.mark.parametrize(
    "text", ["", "night", "25:00-26:00", "22-06", "sam 10:00-11:00", "24:00-01:00"]
)
def test_invalid_quiet_time_names_expected_form(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_quiet(text)
