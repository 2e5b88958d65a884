"""The queues of delays: every number of seconds has its way, and no queue comes twice on it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.durations import parse_duration_ms
from hopback.topology.check import check
from hopback.topology.delays import (
    DUE,
    delay_level_names,
    delay_topology,
    is_delay_level,
    level_count,
    way_in,
)
from hopback.topology.routing import RoutingTable
from hopback.version import BrokerVersion

_WHOLE = delay_topology("30d")
_TABLE = RoutingTable(_WHOLE.exchanges, (queue.name for queue in _WHOLE.queues), _WHOLE.bindings)


def _waits(delay_ms: int) -> list[int]:
    """The times to live of the queues that a message passes, in order."""
    exchange, key = way_in(delay_ms)
    waits: list[int] = []
    (name,) = _TABLE.route(exchange, key)
    while name != DUE:
        queue = _WHOLE.queue(name)
        assert queue is not None
        waits.append(int(str(queue.arguments["x-message-ttl"])))
        next_exchange = str(queue.arguments["x-dead-letter-exchange"])
        fixed = queue.arguments.get("x-dead-letter-routing-key", key)
        (name,) = _TABLE.route(next_exchange, str(fixed))
    return waits


@given(st.integers(0, 30 * 86_400_000))
def test_delay_route_waits_exactly_and_visits_each_queue_once(delay_ms: int) -> None:
    """At most a second more. The waits fall, so no broker sees a cycle."""
    waits = _waits(delay_ms)
    assert delay_ms <= sum(waits) < delay_ms + 1000
    assert waits == sorted(set(waits), reverse=True)


@pytest.mark.parametrize(
    ("delay_ms", "way"),
    [
        (0, ("", DUE)),
        (1, ("hopback.delay.level-00", "1")),
        (1000, ("hopback.delay.level-00", "1")),
        (1001, ("hopback.delay.level-01", "0.1")),
        (13_000, ("hopback.delay.level-03", "1.0.1.1")),
    ],
)
def test_delay_route_is_seconds_in_binary(delay_ms: int, way: tuple[str, str]) -> None:
    assert way_in(delay_ms) == way


def test_longer_delay_only_adds_levels() -> None:
    short, long = delay_topology("1m"), delay_topology("1h")
    assert all(queue in long.queues for queue in short.queues)
    assert all(exchange in long.exchanges for exchange in short.exchanges)
    assert all(binding in long.bindings for binding in short.bindings)


def test_number_of_levels_follows_longest_delay() -> None:
    assert [level_count(each) for each in (0, "1s", "2s", "3s", "4s", "30d")] == [1, 1, 2, 2, 3, 22]
    assert level_count(timedelta(hours=1)) == 12
    assert sum(map(is_delay_level, (one.name for one in _WHOLE.exchanges))) == 22


@pytest.mark.parametrize("version", ["3.10.8", "4.0.5", "4.3.0"])
def test_check_of_delay_queues_has_no_findings(version: str) -> None:
    found = check(_WHOLE, BrokerVersion.parse(version))
    assert [(one.rule, one.place) for one in found] == []


def test_timedelta_is_accepted_as_delay() -> None:
    """It is rounded up to a millisecond."""
    assert parse_duration_ms(timedelta(hours=2, microseconds=1)) == 7_200_001
    with pytest.raises(ValueError, match="from 0 to 3650d"):
        parse_duration_ms(timedelta(seconds=-1))


@pytest.mark.parametrize("name", ["orders", "hopback.delay.level-", "hopback.delay.level-x"])
def test_other_queue_names_have_no_levels(name: str) -> None:
    assert delay_level_names(name) == ()


def test_delay_level_names_lists_all_lower_levels() -> None:
    assert delay_level_names("hopback.delay.level-02") == tuple(
        f"hopback.delay.level-0{number}" for number in range(3)
    )
