"""Header tables of arbitrary bytes: protected headers are never published, other headers survive,
attempts increase.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hopback.designs import DESIGNS
from hopback.headers import (
    FRAME_BYTES,
    Mark,
    frame_size,
    park_properties,
    properties_for_move,
    redrive_properties,
    retry_properties,
)
from hopback.headers.names import OURS, UNREAD
from hopback.message import Properties, Received
from hopback.ops.messages.archive import read_line, write_line
from hopback.policy import Occasion, Retry, Snooze, attempt_of, decide, effects
from hopback.policy import decision as decided
from hopback.policy.decision import Publish
from hopback.wire.properties import decode_properties, encode_properties
from hopback.wire.tables import encode_entries
from tests.properties.field_values import field_values
from tests.properties.hostile import PLANS, VERSIONS, many_examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.policy import Outcome
    from hopback.topology.plan import Plan
    from hopback.version import BrokerVersion

_PROTECTED = frozenset({b"CC", b"BCC", b"x-delivery-count", b"x-acquired-count"})
_PLANS = [
    plan
    for design in DESIGNS.values()
    for plan in design.build(hardened=True).plans
    if plan.queue in {"orders", "raffle_queue", "q.upload.commands"}
]
_MARK = Mark("orders", 1, counters={"x-retries": 1})
_WRITERS: tuple[Callable[[Properties], Properties | None], ...] = (
    lambda found: retry_properties(found, _MARK),
    lambda found: park_properties(found, _MARK),
    lambda found: redrive_properties(found, _MARK),
    lambda found: redrive_properties(found, _MARK, keep_deaths=True),
    properties_for_move,
)


def _with_length(octet: bytes, raw: bytes) -> bytes:
    return octet + len(raw).to_bytes(4, "big") + raw


def _nested_table(levels: int) -> bytes:
    raw = b"V"
    for _ in range(levels):
        raw = _with_length(b"F", b"\x01k" + raw)
    return raw


_valid = st.one_of(
    field_values.map(lambda value: encode_entries({"": value})[1:]),
    st.integers(33, 60).map(_nested_table),
    st.just(_with_length(b"F", b"\x01aV\x01aV")),
    st.just(_with_length(b"F", b"\x01\xffV")),
    st.just(_with_length(b"A", _with_length(b"S", b"vault") + _nested_table(40))),
)
_INVALID = (_with_length(b"F", b"\x01kz"), _with_length(b"A", b"z"), _with_length(b"F", b"\x09k"))
_invalid = st.sampled_from(_INVALID)
_meaningful = st.sampled_from(
    (
        *sorted(_PROTECTED),
        b"x-death",
        b"x-first-death-queue",
        b"x-retries",
        b"hopback-future",
        *sorted(name.encode() for name in OURS),
    )
)
_other = st.sampled_from((b"u-a", b"u-b", b"", b"cc", b"\xff", b"\xffCC", b"aaa", b"zzz"))


def _entry(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + value


@st.composite
def _lists_of_entries(draw: st.DrawFn) -> list[bytes]:
    """Draw entries from a few names, so that names repeat."""
    names = st.sampled_from(draw(st.lists(_other | _meaningful, min_size=1, max_size=3)))
    sound, unsound = st.builds(_entry, names, _valid), st.builds(_entry, names, _invalid)
    return draw(st.lists(st.one_of(sound, sound, sound, unsound), max_size=9))


_entries = _lists_of_entries()
_tables = st.one_of(
    st.builds(lambda parts, rest: b"".join(parts) + rest, _entries, st.binary(max_size=40)),
    _entries.map(b"".join),
)


def _read_properties(entries: bytes) -> Properties:
    return decode_properties(b"\x20\x00" + len(entries).to_bytes(4, "big") + entries)


def _encode_headers(properties: Properties) -> bytes:
    """Return the header table in wire format."""
    raw = encode_properties(
        Properties(headers=properties.headers, further_headers=properties.further_headers)
    )
    return raw[6:]


def _split_entries(entries: bytes) -> list[tuple[bytes, bytes]]:
    """Split a table into names and values by the lengths alone, as a broker does."""
    found = []
    position = 0
    while position < len(entries):
        start = position + 1 + entries[position]
        name, kind = entries[position + 1 : start], entries[start : start + 1]
        if kind in (b"S", b"x", b"A", b"F"):
            end = start + 5 + int.from_bytes(entries[start + 1 : start + 5], "big")
        else:
            sizes = {
                b"V": 0,
                b"t": 1,
                b"b": 1,
                b"B": 1,
                b"s": 2,
                b"u": 2,
                b"I": 4,
                b"i": 4,
                b"f": 4,
            }
            end = start + 1 + (sizes | {b"D": 5, b"l": 8, b"L": 8, b"d": 8, b"T": 8})[kind]
        assert end <= len(entries)
        found.append((name, entries[start:end]))
        position = end
    return found


@given(_tables, st.sampled_from(_WRITERS))
@example(3 * _entry(b"x-retries", b"t\x00"), _WRITERS[0])
@many_examples
def test_protected_headers_are_never_published(
    table: bytes, write: Callable[[Properties], Properties | None]
) -> None:
    """Also if they occur behind deep nesting, twice or in unreadable bytes."""
    written = write(_read_properties(table))
    assert written is not None
    assert written.opaque_headers == b""
    names = Counter(name for name, _ in _split_entries(_encode_headers(written)))
    assert not names.keys() & _PROTECTED
    # A move keeps the design's counters. All other writers set them.
    once = (
        (b"hopback-", b"x-death")
        if write is properties_for_move
        else (b"hopback-", b"x-death", b"x-retries")
    )
    assert [name for name, count in names.items() if count > 1 and name.startswith(once)] == []


@given(_entries, st.sampled_from(_WRITERS))
@many_examples
def test_ordinary_headers_survive_byte_for_byte(
    entries: list[bytes], write: Callable[[Properties], Properties | None]
) -> None:
    """At any depth, with any name, also repeated. Unreadable entries are kept in a separate header."""
    table = b"".join(entries)
    before = _read_properties(table)
    written = write(before)
    assert written is not None
    ordinary = (b"u-", b"cc", b"\xff", b"aaa", b"zzz")
    sent = Counter(each for each in _split_entries(table) if each[0].startswith(ordinary))
    got = Counter(
        each for each in _split_entries(_encode_headers(written)) if each[0].startswith(ordinary)
    )
    missing = sent - got
    assert not got - sent
    assert all(value in _INVALID for _, value in missing)
    assert all(_entry(*each) in before.opaque_headers for each in missing)
    if before.opaque_headers:
        assert written.headers[UNREAD] == before.opaque_headers


@given(_tables, st.sampled_from(_PLANS), st.sampled_from(VERSIONS))
@many_examples
def test_attempts_never_go_down(table: bytes, plan: Plan, version: BrokerVersion) -> None:
    """Each hop increments the attempts until the message is parked, though the broker sorts headers."""
    found = _read_properties(table)
    before = 0
    while True:
        delivery = Received(plan.queue, "", plan.queue, b"body", found)
        attempt = attempt_of(delivery, plan)
        assert attempt > before
        before = attempt
        decision = decide(delivery, Retry("no"), plan, version=version)
        if not isinstance(decision, decided.Retry):
            return
        (moved,) = (
            step.message.properties
            for step in effects(decision, delivery, plan, Occasion(1.0))
            if isinstance(step, Publish)
        )
        walked = sorted(_split_entries(_encode_headers(moved)), key=lambda each: each[0])
        found = _read_properties(b"".join(_entry(*each) for each in walked))


@pytest.mark.parametrize("outcome", [Retry("no"), Snooze(1.0)], ids=str)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.queue)
def test_message_with_unreadable_headers_is_parked_at_first_failure(
    plan: Plan, outcome: Outcome
) -> None:
    """In every design, after a failure or a snooze, because its attempts cannot be counted."""
    found = _read_properties(b"\x01kz\x02CCA\x00\x00\x00\x0aS\x00\x00\x00\x05vault")
    delivery = Received(plan.queue, "", plan.queue, b"body", found)
    decision = decide(delivery, outcome, plan, version=VERSIONS[-1])
    assert isinstance(decision, decided.Park)
    for step in effects(decision, delivery, plan, Occasion(1.0)):
        if isinstance(step, Publish):
            assert step.message.properties.headers[UNREAD] == found.opaque_headers
            assert b"CC" not in dict(_split_entries(_encode_headers(step.message.properties)))


@given(_tables)
@many_examples
def test_archive_preserves_unreadable_headers_and_import_drops_protected_ones(table: bytes) -> None:
    found = _read_properties(table)
    archived = read_line(write_line(Received("dlq", "", "dlq", b"body", found))).properties
    assert (archived.further_headers, archived.opaque_headers) == (
        found.further_headers,
        found.opaque_headers,
    )
    assert encode_entries(archived.headers) == encode_entries(found.headers)
    names = {name for name, _ in _split_entries(_encode_headers(properties_for_move(archived)))}
    assert not names & _PROTECTED


@given(st.integers(125_000, 131_060), st.integers(1, 6000), st.sampled_from(_WRITERS))
@example(131_019, 1, _WRITERS[0])
@example(131_019, 1, _WRITERS[-1])
@many_examples
def test_unread_bytes_are_cut_last_and_their_length_is_recorded(
    ballast: int, unread: int, write: Callable[[Properties], Properties | None]
) -> None:
    """The message always fits a frame."""
    found = Properties(headers={"b": b"b" * (ballast - unread)}, opaque_headers=b"z" * unread)
    written = write(found)
    if written is None or frame_size(written) > FRAME_BYTES:
        assert frame_size(found) > FRAME_BYTES - 400
        return
    # No room besides Hopback's headers: parked without its largest header.
    if "b" not in written.headers:
        dropped = written.headers["hopback-unread-bytes"]
        assert frame_size(found) > FRAME_BYTES - 400
        assert isinstance(dropped, int)
        assert dropped >= ballast
        return
    kept = written.headers.get(UNREAD, b"")
    assert isinstance(kept, bytes)
    if len(kept) < unread:
        assert "hopback-failure" not in written.headers
        assert written.headers.get("hopback-unread-bytes", unread) == unread
        assert frame_size(written) > FRAME_BYTES - 64
