"""Scenario files: TOML that says which queues, which traffic, and what goes wrong when."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from hopback.errors import InvalidTopology, Problem
from hopback.policy.breaker import BreakerPolicy
from hopback.rehearse.quantities import (
    parse_consumers,
    parse_rate,
    parse_seconds,
    parse_share,
    parse_size,
    parse_spread,
)
from hopback.rehearse.scenario import (
    ArrivalKind,
    Crash,
    Load,
    Outage,
    RateStep,
    RedriveWave,
    Scenario,
    Slowdown,
)
from hopback.topology.located import Located
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.topology.located import Table

__all__ = ["read_profile", "read_scenario"]

T = TypeVar("T")

_MOST_PROFILE_ROWS = 100_000
"""A rate for every second of a day, and some more."""


def read_scenario(
    text: str,
    *,
    where: str = "scenario.toml",
    profile: Callable[[str], str] | None = None,
    live: Callable[[str], float] | None = None,
) -> Scenario:
    """The scenario in a TOML file; InvalidTopology lists everything wrong, each with its path.

    `profile` reads a CSV file that the scenario names, relative to its own place. `live` tells the rate
    of a queue whose `rate` is "live".
    """
    import tomllib

    try:
        data = tomllib.loads(text)
    except ValueError as error:
        raise InvalidTopology((Problem("file", "valid TOML", str(error)),), where=where) from None
    root = Located("", data, [])
    table = root.table()
    loads = tuple(_load(name, place, profile, live) for name, place in table.entries("queues"))
    scenario = partial(
        Scenario,
        loads=loads,
        duration_s=table.need("for", _seconds, 0.0, "a duration like 2h"),
        outages=tuple(_outage(place) for place in table.items("outages")),
        slowdowns=tuple(_slowdown(place) for place in table.items("slowdowns")),
        crashes=tuple(_crash(place) for place in table.items("crashes")),
        redrives=tuple(_wave(place) for place in table.items("redrives")),
        seed=table.read("seed", Located.integer, 0),
        samples=table.read("samples", Located.positive, 240),
        version=table.read("broker-version", _version, BrokerVersion(4, 0)),
        memory=table.read("memory", _size, None),
        disk=table.read("disk", _size, None),
        name=where,
    )
    table.close()
    root.check(where)
    return scenario()


def read_profile(text: str) -> tuple[RateStep, ...]:
    """A recorded profile: rows of seconds (or a duration) and a rate; a header is passed over."""
    steps: list[RateStep] = []
    for number, line in enumerate(text.splitlines()):
        cells = [cell.strip() for cell in line.replace(";", ",").split(",")]
        if not any(cells) or (number == 0 and not cells[0][:1].isdigit()):
            continue
        if len(cells) < 2 or len(steps) >= _MOST_PROFILE_ROWS:
            raise ValueError(
                f"line {number + 1}: expected seconds,rate and at most {_MOST_PROFILE_ROWS} rows,"
                f" got {line[:60]!r}"
            )
        seconds = cells[0].replace(".", "", 1).isdecimal()
        at = float(cells[0]) if seconds else parse_seconds(cells[0])
        steps.append(RateStep(at, parse_rate(cells[1])))
    if not steps or any(a.at_s >= b.at_s for a, b in pairwise(steps)):
        raise ValueError(
            "expected rows of seconds,rate in rising order of time, got none or others"
        )
    return tuple(steps)


def _read(place: Located, parse: Callable[..., T], otherwise: T) -> T:
    """A value by a parser that says what it expected."""
    try:
        return parse(place.value)
    except (ValueError, AttributeError, TypeError) as error:
        expected = str(error).removeprefix("expected ").rpartition(", got ")[0]
        place.wrong(expected or "text like in the reference")
        return otherwise


def _seconds(place: Located) -> float:
    return place.duration_ms() / 1000


def _rate(place: Located) -> float:
    return _read(place, parse_rate, 0.0)


def _share(place: Located) -> float:
    return _read(place, parse_share, 0.0)


def _size(place: Located) -> int | None:
    return _read(place, parse_size, 0)


def _version(place: Located) -> BrokerVersion:
    return _read(place, BrokerVersion.parse, BrokerVersion(4, 0))


def _names(place: Located) -> tuple[str, ...]:
    if isinstance(place.value, str):
        return (place.value,)
    return tuple(one.text() for one in place.items())


def _load(
    name: str,
    place: Located,
    profile: Callable[[str], str] | None,
    live: Callable[[str], float] | None,
) -> Load:
    table = place.table()
    handler_s, spread_s = table.read(
        "handler", lambda at: _read(at, parse_spread, (0.04, 0.0)), (0.04, 0.0)
    )
    processes, concurrency = table.read(
        "consumers", lambda at: _read(at, parse_consumers, (1, 10)), (1, 10)
    )
    load = Load(
        queue=name,
        rates=_rates(name, table, profile, live),
        arrivals=table.read("arrivals", lambda at: at.option(ArrivalKind), ArrivalKind.CONSTANT),
        burst_s=table.read("burst-every", _seconds, 60.0),
        fail=table.read("fail", _share, 0.0),
        poison=table.read("poison", _share, 0.0),
        handler_s=handler_s,
        spread_s=spread_s,
        processes=processes,
        concurrency=concurrency,
        prefetch=table.read("prefetch", Located.positive, None),
        breaker=table.read("breaker", _breaker, None),
        size=table.read("size", _size, None) or 1000,
        dependency=table.read("dependency", Located.text, ""),
        exchange=table.read("exchange", Located.text, None),
        routing_key=table.read("routing-key", Located.text, None),
    )
    table.close()
    return load


def _rates(
    queue: str,
    table: Table,
    profile: Callable[[str], str] | None,
    live: Callable[[str], float] | None,
) -> tuple[RateStep, ...]:
    """A rate, a list of {at, rate}, the rate of a live broker, or a profile's file."""
    named = table.get("profile")
    if named is not None and profile is not None:
        return _read(named, lambda name: read_profile(profile(name)), ())
    place = table.get("rate")
    if place is None:
        table.place.inner("rate", None).wrong(
            "a rate like 500/s, or profile = a CSV file", "nothing"
        )
        return ()
    if place.value == "live" and live is not None:
        return (RateStep(0.0, live(queue)),)
    if not isinstance(place.value, list):
        return (RateStep(0.0, _rate(place)),)
    steps = []
    for one in place.items():
        row = one.table()
        at = row.need("at", _seconds, 0.0, "a duration")
        steps.append(RateStep(at, row.need("rate", _rate, 0.0, "a rate")))
        row.close()
    if any(a.at_s >= b.at_s for a, b in pairwise(steps)):
        place.wrong("steps in rising order of time")
    return tuple(steps)


def _breaker(place: Located) -> BreakerPolicy:
    if place.value is True:
        return BreakerPolicy()
    table = place.table()
    usual = BreakerPolicy()
    policy = BreakerPolicy(
        failures=table.read("failures", Located.positive, usual.failures),
        cool_down=table.read("cool-down", _seconds, usual.cool_down),
        longest_cool_down=table.read("longest-cool-down", _seconds, usual.longest_cool_down),
        probes=table.read("probes", Located.positive, usual.probes),
    )
    table.close()
    return policy


def _outage(place: Located) -> Outage:
    table = place.table()
    outage = Outage(
        start_s=table.need("at", _seconds, 0.0, "a duration like 5m"),
        length_s=table.need("for", _seconds, 0.0, "a duration like 20m"),
        hits=table.read("hits", _names, ()),
        share=table.read("share", _share, 1.0),
        handler_s=table.read("handler", _seconds, None),
    )
    table.close()
    return outage


def _slowdown(place: Located) -> Slowdown:
    table = place.table()
    factor = table.need("factor", lambda at: _read(at, float, 1.0), 1.0, "a number like 3")
    slowdown = Slowdown(
        start_s=table.need("at", _seconds, 0.0, "a duration like 5m"),
        length_s=table.need("for", _seconds, 0.0, "a duration like 20m"),
        factor=factor,
        hits=table.read("hits", _names, ()),
    )
    table.close()
    return slowdown


def _crash(place: Located) -> Crash:
    table = place.table()
    crash = Crash(
        start_s=table.need("at", _seconds, 0.0, "a duration like 5m"),
        restart_s=table.need("restart", _seconds, 0.0, "a duration like 30s"),
        processes=table.read("processes", Located.positive, 1),
        hits=table.read("hits", _names, ()),
    )
    table.close()
    return crash


def _wave(place: Located) -> RedriveWave:
    table = place.table()
    wave = RedriveWave(
        start_s=table.need("at", _seconds, 0.0, "a duration like 1h"),
        rate=table.need("rate", _rate, 0.0, "a rate like 200/s"),
        ramp_s=table.read("ramp", _seconds, 0.0),
        hits=table.read("hits", _names, ()),
    )
    table.close()
    return wave
