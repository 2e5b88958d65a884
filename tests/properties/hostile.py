"""Strategies for deliveries with arbitrary values under known and unknown header names."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st

from hopback.designs import DESIGNS
from hopback.fields import Float32, Int8, Int32, LongStr, Timestamp, UInt8, UInt64
from hopback.headers.names import OURS
from hopback.message import Properties, Received
from hopback.policy import Done, Park, Retry, Snooze
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers
    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan

__all__ = [
    "PLANS",
    "TOPOLOGIES",
    "VERSIONS",
    "deliveries",
    "hostile_headers",
    "many_examples",
    "no_deadline",
    "outcomes",
    "plans",
    "user_headers",
]

no_deadline = settings(deadline=None)
"""The number of examples of the profile, without a time limit for a busy machine."""

many_examples = settings(deadline=None, max_examples=max(50, settings().max_examples))
"""At least 50 examples in every profile, for code that rewrites messages."""

TOPOLOGIES: dict[tuple[str, bool], Topology] = {
    (design.name, hardened): design.build(hardened=hardened)
    for design in DESIGNS.values()
    for hardened in (False, True)
}
PLANS: tuple[Plan, ...] = tuple(plan for topology in TOPOLOGIES.values() for plan in topology.plans)
VERSIONS = tuple(map(BrokerVersion.parse, ("3.10", "3.13", "4.0", "4.3")))

_BROKERS = (
    "x-death", "x-first-death-queue", "x-first-death-reason", "x-last-death-queue",
    "x-last-death-exchange", "x-delivery-count", "x-acquired-count", "CC", "BCC",
)  # fmt: skip
_DESIGNS = ("x-retry-count", "x-retries", "x-retry-reason", "x-original-routing-key")
_QUEUES = (*dict.fromkeys(plan.queue for plan in PLANS), "q.audit.retry", "elsewhere", "")
_REASONS = ("rejected", "expired", "maxlen", "delivery_limit", "", "no such reason")

# Every type of a field table with edge cases. Sampling complete values is fast.
_ODD: tuple[FieldValue, ...] = (
    None, True, False, 0, 1, 3, 11, -1, 2**31, 2**63 - 1, -(2**63),
    Int8(-128), UInt8(255), Int32(2), UInt64(2**64 - 1), Timestamp(0), Timestamp(2**64 - 1),
    1.5, float("nan"), float("inf"), Float32(0.5), Decimal("1.25"), Decimal(-1),
    "", "3", "ü…", "not json {", "[[[[", "x" * 300, *_QUEUES,
    b"", b"bytes", LongStr(b"\xff\xfe"),
    [], {}, ["a", None], [{}], [[{"queue": "q.audit"}]], {"queue": ["q.audit"]},
    {"table": {"inside": [Int8(1), {"deeper": b"x"}]}},
)  # fmt: skip
_values: st.SearchStrategy[FieldValue] = st.one_of(
    st.sampled_from(_ODD), st.integers(-5, 15), st.text(max_size=10)
)
_entries: st.SearchStrategy[FieldValue] = st.one_of(
    st.builds(
        lambda queue, reason, count, key: {
            "queue": queue,
            "reason": reason,
            "count": count,
            "exchange": "domain.events",
            "time": Timestamp(1_700_000_000),
            "routing-keys": [key],
        },
        st.sampled_from(_QUEUES),
        st.sampled_from(_REASONS),
        st.integers(1, 12),
        st.text(max_size=5),
    ),
    st.dictionaries(
        st.sampled_from(("queue", "reason", "count", "exchange", "time", "routing-keys")),
        _values,
        max_size=6,
    ),
    _values,
)
_jsons = st.one_of(
    st.lists(st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=2), max_size=12),
    st.dictionaries(
        st.sampled_from(("type", "message", "stack", "first", "last", "attempts", "host")),
        st.sampled_from(("text", "2023-11-14T22:13:20.000Z", 7, -1, 1.5, None, [], "9" * 2000)),
    ),
).map(json.dumps)


def _value_of(name: str) -> st.SearchStrategy[FieldValue]:
    """Values that are likely to cause errors under this name."""
    if name == "x-death":
        return st.one_of(st.lists(_entries, max_size=4), _values)
    if name == "hopback-deaths":
        return st.one_of(_jsons, _jsons.map(lambda text: [text[:9], text[9:]]), _values)
    if name == "hopback-failure":
        return st.one_of(_jsons, _values)
    return _values


user_headers: st.SearchStrategy[dict[str, FieldValue]] = st.dictionaries(
    st.text(min_size=1, max_size=4).map(lambda name: f"u-{name}"), _values, max_size=3
)
"""Headers of a producer."""


@st.composite
def hostile_headers(draw: st.DrawFn) -> Headers:
    """Producer headers before and after arbitrary values under known names."""
    known = st.sampled_from((*_BROKERS, *_DESIGNS, *sorted(OURS)))
    names = draw(st.lists(known, unique=True, max_size=7))
    first = draw(user_headers)
    return first | {name: draw(_value_of(name)) for name in names} | draw(user_headers)


@st.composite
def deliveries(draw: st.DrawFn, plan: Plan) -> Received:
    """A delivery from the plan's queue with hostile properties."""
    short = st.sampled_from((None, "", "text", "ü"))
    properties = Properties(
        headers=draw(hostile_headers()),
        content_type=draw(short),
        correlation_id=draw(short),
        delivery_mode=draw(st.sampled_from((None, 1, 2))),
        expiration=draw(st.sampled_from((None, "1000"))),
        user_id=draw(st.sampled_from((None, "alice"))),
        message_id=draw(short),
        further_headers=draw(st.sampled_from(((), ((b"CC", ["vault"]), (b"hopback-attempts", 0))))),
        opaque_headers=draw(st.sampled_from((b"", b"\x01opaque"))),
    )
    key = draw(st.sampled_from(("user.created", "auth.x", "", "..", "a.b.c.d", "ü")))
    exchange = draw(st.sampled_from(("", "freeflow.events")))
    return Received(plan.queue, exchange, key, b"body", properties)


plans = st.sampled_from(PLANS)
_times = st.floats() | st.sampled_from((-1, 0, 30, 31, 10**400))
_reasons = st.sampled_from(("", "db_error: connection timeout", "ü" * 2000, "\udc80 cannot travel"))
outcomes = st.one_of(
    st.just(Done()),
    st.builds(Retry, _reasons, st.none() | _times),
    st.builds(Park, _reasons),
    st.builds(Snooze, _times),
)
