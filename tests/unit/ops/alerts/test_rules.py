"""Which alerts fire, who is told and when: a pure decision, played through time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopback.ops.alerts.quiet import parse_quiet
from hopback.ops.alerts.rules import (
    AlertDecision,
    AlertInput,
    AlertManners,
    FingerprintSeen,
    QueueSeen,
    decide_alerts,
)
from hopback.ops.alerts.values import Alert, AlertKind, AlertNotice, AlertRule, AlertState
from hopback.ops.contract.codec import encode, from_json
from hopback.ops.contract.requests import JobKind
from hopback.ops.contract.values import Job, JobState, Moment

_NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()  # a Monday
_DEEP = AlertRule("deep", AlertKind.DEPTH, above=10)
_OPS = AlertManners(("ops",), UTC, wait_s=0.0)


class _Watch:
    """Remembers the alerts from one look to the next, as a book does."""

    def __init__(self, *rules: AlertRule, manners: AlertManners = _OPS) -> None:
        self.rules = rules
        self.manners = manners
        self.alerts: dict[str, Alert] = {}
        self.notices: list[AlertNotice] = []

    def look(self, now: float, *queues: QueueSeen, jobs: tuple[Job, ...] = ()) -> AlertDecision:
        return self.look_at(now, AlertInput("", queues, jobs))

    def look_at(
        self, now: float, *brokers: AlertInput, served: tuple[str, ...] = ()
    ) -> AlertDecision:
        known = self.alerts.values()
        decision = decide_alerts(self.rules, brokers, known, now, self.manners, served)
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


def test_a_depth_fires_once_and_is_resolved_once() -> None:
    """However often it is looked at; the page of the queue is in the alert."""
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
            QueueSeen("q", 1, fingerprints=(FingerprintSeen("f", "KeyError", _NOW - 10),)),
            QueueSeen("q", 1, fingerprints=(FingerprintSeen("f", "KeyError", _NOW - 61),)),
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
def test_each_kind_holds_where_it_says(
    rule: AlertRule, holds: QueueSeen, does_not: QueueSeen
) -> None:
    """On one side of its bound it fires, on the other it does not; another queue is not its business."""
    watch = _Watch(rule)
    watch.look(_NOW, does_not)
    assert watch.firing == []
    watch.look(_NOW, holds)
    assert len(watch.firing) == 1
    other = _Watch(AlertRule("r", rule.kind, queues=("other.*",)))
    other.look(_NOW, holds)
    assert other.alerts == {}


def test_a_job_that_stopped_fires_until_it_goes_on() -> None:
    """The alert leads to the job; one that was cancelled calls for nobody."""
    job = Job(
        id="j-1",
        kind=JobKind.REDRIVE,
        queue="q",
        state=JobState.FAILED,
        reason="the target is full",
        created=Moment(0),
        updated=Moment(0),
    )
    watch = _Watch(AlertRule("r", AlertKind.JOB_STOPPED))
    watch.look(_NOW, jobs=(job,))
    assert watch.firing == ["the re-drive has failed: the target is full"]
    assert next(iter(watch.alerts.values())).url == "/jobs/j-1"
    watch.look(_NOW + 1)
    assert watch.firing == []


def test_what_nobody_can_see_stays_as_it_is() -> None:
    """A broker that is away, or a depth that nobody tells, resolves nothing; a queue that is gone does."""
    watch = _Watch(_DEEP)
    watch.look(_NOW, QueueSeen("q", 11))
    watch.look_at(_NOW + 1)
    watch.look(_NOW + 2, QueueSeen("q", None))
    assert len(watch.firing) == 1
    watch.look(_NOW + 3)
    assert watch.firing == []


def test_a_broker_that_gets_a_name_takes_its_alerts_along() -> None:
    """They go on under it: told once, at the right page, and over when their cause is."""
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


def test_alerts_of_a_broker_that_is_served_no_longer_are_over() -> None:
    """Nobody would ever see them end."""
    watch = _Watch(_DEEP)
    watch.look_at(_NOW, AlertInput("south", (QueueSeen("q", 11),)), served=("north", "south"))
    watch.look_at(_NOW + 1, served=("north", "south"))
    assert len(watch.firing) == 1
    watch.look_at(_NOW + 2, served=("north",))
    assert (watch.firing, watch.said) == ([], [(1, 0), (0, 1)])


def test_a_rule_may_be_about_one_broker() -> None:
    """The same queue of another broker is another thing."""
    watch = _Watch(AlertRule("deep", AlertKind.DEPTH, above=10, broker="production"))
    deep = QueueSeen("q", 11)
    watch.look_at(_NOW, AlertInput("staging", (deep,)), AlertInput("production", (deep,)))
    assert [one.broker for one in watch.alerts.values()] == ["production"]


def test_what_holds_only_for_a_moment_tells_nobody() -> None:
    """It must hold for as long as its rule says; what ends before is forgotten."""
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


def test_an_age_that_nobody_tells_is_how_long_the_queue_was_not_empty() -> None:
    """Counted from the first look at which something was there."""
    watch = _Watch(AlertRule("old", AlertKind.OLDEST_AGE, older_than_seconds=100))
    watch.look(_NOW, QueueSeen("q", 1))
    watch.look(_NOW + 99, QueueSeen("q", 1))
    assert watch.firing == []
    watch.look(_NOW + 100, QueueSeen("q", 5))
    assert watch.firing == ["not empty, limit 1m40s"]


def test_alerts_that_come_together_are_one_message() -> None:
    """A message waits for others to join it, and is not sent at all if everything passes meanwhile."""
    watch = _Watch(_DEEP, manners=replace(_OPS, wait_s=30))
    watch.look(_NOW, QueueSeen("a", 11))
    watch.look(_NOW + 20, QueueSeen("a", 11), QueueSeen("b", 12))
    assert watch.notices == []
    watch.look(_NOW + 30, QueueSeen("a", 11), QueueSeen("b", 99))
    assert watch.said == [(2, 0)]
    assert [one.text for one in watch.notices[0].firing][1] == "99 dead letters, more than 10"
    short = _Watch(_DEEP, manners=replace(_OPS, wait_s=30))
    short.look(_NOW, QueueSeen("a", 11))
    short.look(_NOW + 20, QueueSeen("a", 0))
    short.look(_NOW + 60, QueueSeen("a", 0))
    assert short.notices == []


def test_what_comes_back_before_anybody_heard_of_its_end_never_ended() -> None:
    """A depth that swings around its bound is one alert."""
    watch = _Watch(_DEEP, manners=replace(_OPS, wait_s=30))
    watch.look(_NOW, QueueSeen("a", 11))
    watch.look(_NOW + 30, QueueSeen("a", 11))
    for second in range(40, 200, 10):
        watch.look(_NOW + second, QueueSeen("a", 10 + (second // 10) % 2))
    assert watch.said == [(1, 0)]
    assert len(watch.alerts) == 1


def test_quiet_times_hold_messages_back_and_lose_none() -> None:
    """What fires at night is told in the morning; what passed by then is not."""
    night = datetime(2026, 3, 2, 23, 0, tzinfo=UTC).timestamp()
    watch = _Watch(_DEEP, manners=replace(_OPS, quiet=("22:00-06:00",)))
    watch.look(night, QueueSeen("a", 11), QueueSeen("b", 11))
    watch.look(night + 3600, QueueSeen("a", 11), QueueSeen("b", 0))
    assert watch.notices == []
    watch.look(night + 7 * 3600, QueueSeen("a", 11), QueueSeen("b", 0))
    assert watch.said == [(1, 0)]
    loud = _Watch(
        AlertRule("deep", AlertKind.DEPTH, above=10, quiet=()),
        manners=replace(_OPS, quiet=("22:00-06:00",)),
    )
    loud.look(night, QueueSeen("a", 11))
    assert loud.said == [(1, 0)]


def test_somebody_who_asked_for_it_is_reminded() -> None:
    """An alert that goes on is told again after so long, and not sooner."""
    watch = _Watch(_DEEP, manners=replace(_OPS, remind_s=3600))
    for minutes in range(0, 150, 10):
        watch.look(_NOW + minutes * 60, QueueSeen("a", 11))
    assert watch.said == [(1, 0)] * 3


def test_only_those_of_a_rule_are_told() -> None:
    """A rule without targets tells everybody; a rule that is gone resolves what it had said."""
    manners = replace(_OPS, targets=("ops", "chat"))
    watch = _Watch(AlertRule("deep", AlertKind.DEPTH, targets=("chat",)), _DEEP, manners=manners)
    watch.rules = (watch.rules[0], AlertRule("all", AlertKind.DEPTH))
    watch.look(_NOW, QueueSeen("a", 1))
    assert {one.target: len(one.firing) for one in watch.notices} == {"ops": 1, "chat": 2}
    watch.rules = (watch.rules[0],)
    watch.look(_NOW + 1, QueueSeen("a", 1))
    assert {one.target: len(one.resolved) for one in watch.notices[2:]} == {"ops": 1, "chat": 1}


def test_resolved_alerts_are_forgotten_after_a_week() -> None:
    """Until then they can be read."""
    watch = _Watch(_DEEP)
    watch.look(_NOW, QueueSeen("a", 11))
    watch.look(_NOW + 1, QueueSeen("a", 0))
    watch.look(_NOW + 7 * 86_400, QueueSeen("a", 0))
    assert len(watch.alerts) == 1
    watch.look(_NOW + 7 * 86_400 + 2, QueueSeen("a", 0))
    assert watch.alerts == {}


def test_a_message_has_an_end() -> None:
    """Of very many alerts some are named and the rest counted; all of them count as told."""
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
def test_firing_and_resolved_are_told_in_turn(
    depths: list[tuple[float, int | None]], wait_s: float, for_s: float
) -> None:
    """Whatever the depths do: nobody hears twice that it fires, nor of an end without a beginning."""
    rule = AlertRule("deep", AlertKind.DEPTH, above=10, for_seconds=for_s)
    watch, now = _Watch(rule, manners=replace(_OPS, wait_s=wait_s)), _NOW
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
def test_quiet_times_are_read_as_people_write_them(
    text: str, inside: list[str], outside: list[str]
) -> None:
    """Days are those on which they begin; an end before the beginning is on the next day."""
    quiet, zone = parse_quiet(text), ZoneInfo("Europe/Berlin")
    moments = {
        each: datetime.fromisoformat(each).replace(tzinfo=zone) for each in (*inside, *outside)
    }
    assert [each for each, moment in moments.items() if quiet.holds(moment)] == inside


@pytest.mark.parametrize(
    "text", ["", "night", "25:00-26:00", "22-06", "sam 10:00-11:00", "24:00-01:00"]
)
def test_what_is_no_quiet_time_is_refused(text: str) -> None:
    """With what was expected."""
    with pytest.raises(ValueError, match="expected"):
        parse_quiet(text)
