"""Header tables of any bytes: nothing protected is published, nothing ordinary is lost, counts grow."""

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
from tests.properties.hostile import PLANS, VERSIONS, matters

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


def _sized(octet: bytes, raw: bytes) -> bytes:
    return octet + len(raw).to_bytes(4, "big") + raw


def _deep(levels: int) -> bytes:
    raw = b"V"
    for _ in range(levels):
        raw = _sized(b"F", b"\x01k" + raw)
    return raw


_sound = st.one_of(
    field_values.map(lambda value: encode_entries({"": value})[1:]),
    st.integers(33, 60).map(_deep),
    st.just(_sized(b"F", b"\x01aV\x01aV")),
    st.just(_sized(b"F", b"\x01\xffV")),
    st.just(_sized(b"A", _sized(b"S", b"vault") + _deep(40))),
)
_UNSOUND = (_sized(b"F", b"\x01kz"), _sized(b"A", b"z"), _sized(b"F", b"\x09k"))
_unsound = st.sampled_from(_UNSOUND)
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
_ordinary = st.sampled_from((b"u-a", b"u-b", b"", b"cc", b"\xff", b"\xffCC", b"aaa", b"zzz"))


def _entry(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + value


@st.composite
def _lists_of_entries(draw: st.DrawFn) -> list[bytes]:
    """Entries under few names, so that the same name comes again."""
    names = st.sampled_from(draw(st.lists(_ordinary | _meaningful, min_size=1, max_size=3)))
    sound, unsound = st.builds(_entry, names, _sound), st.builds(_entry, names, _unsound)
    return draw(st.lists(st.one_of(sound, sound, sound, unsound), max_size=9))


_entries = _lists_of_entries()
_tables = st.one_of(
    st.builds(lambda parts, rest: b"".join(parts) + rest, _entries, st.binary(max_size=40)),
    _entries.map(b"".join),
)


def _read(entries: bytes) -> Properties:
    return decode_properties(b"\x20\x00" + len(entries).to_bytes(4, "big") + entries)


def _published(properties: Properties) -> bytes:
    """The header table as it is on the wire."""
    raw = encode_properties(
        Properties(headers=properties.headers, further_headers=properties.further_headers)
    )
    return raw[6:]


def _walked(entries: bytes) -> list[tuple[bytes, bytes]]:
    """Name and value of each entry, by lengths alone, as a broker walks through them."""
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
@matters
def test_no_protected_header_is_published_wherever_it_stood(
    table: bytes, write: Callable[[Properties], Properties | None]
) -> None:
    """Behind depth, twice, or in what nobody can read: after any hop the broker finds none of them."""
    written = write(_read(table))
    assert written is not None
    assert written.opaque_headers == b""
    names = Counter(name for name, _ in _walked(_published(written)))
    assert not names.keys() & _PROTECTED
    # What only moves keeps the design's counters as they are; elsewhere the count is written anew.
    once = (
        (b"hopback-", b"x-death")
        if write is properties_for_move
        else (b"hopback-", b"x-death", b"x-retries")
    )
    assert [name for name, count in names.items() if count > 1 and name.startswith(once)] == []


@given(_entries, st.sampled_from(_WRITERS))
@matters
def test_ordinary_headers_survive_byte_for_byte(
    entries: list[bytes], write: Callable[[Properties], Properties | None]
) -> None:
    """At any depth, of any name, also twice: what reads is what stood there; the rest is kept aside."""
    table = b"".join(entries)
    before = _read(table)
    written = write(before)
    assert written is not None
    ordinary = (b"u-", b"cc", b"\xff", b"aaa", b"zzz")
    sent = Counter(each for each in _walked(table) if each[0].startswith(ordinary))
    got = Counter(each for each in _walked(_published(written)) if each[0].startswith(ordinary))
    missing = sent - got
    assert not got - sent
    assert all(value in _UNSOUND for _, value in missing)
    assert all(_entry(*each) in before.opaque_headers for each in missing)
    if before.opaque_headers:
        assert written.headers[UNREAD] == before.opaque_headers


@given(_tables, st.sampled_from(_PLANS), st.sampled_from(VERSIONS))
@matters
def test_attempts_never_go_down(table: bytes, plan: Plan, version: BrokerVersion) -> None:
    """Each hop counts one more, though the broker sorts headers, until the message is parked."""
    found = _read(table)
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
        walked = sorted(_walked(_published(moved)), key=lambda each: each[0])
        found = _read(b"".join(_entry(*each) for each in walked))


@pytest.mark.parametrize("outcome", [Retry("no"), Snooze(1.0)], ids=str)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.queue)
def test_what_cannot_be_read_is_parked_at_once(plan: Plan, outcome: Outcome) -> None:
    """By a failure or a snooze, in every design: it never comes back to be counted from nothing."""
    found = _read(b"\x01kz\x02CCA\x00\x00\x00\x0aS\x00\x00\x00\x05vault")
    delivery = Received(plan.queue, "", plan.queue, b"body", found)
    decision = decide(delivery, outcome, plan, version=VERSIONS[-1])
    assert isinstance(decision, decided.Park)
    for step in effects(decision, delivery, plan, Occasion(1.0)):
        if isinstance(step, Publish):
            assert step.message.properties.headers[UNREAD] == found.opaque_headers
            assert b"CC" not in dict(_walked(_published(step.message.properties)))


@given(_tables)
@matters
def test_an_archive_keeps_all_of_it(table: bytes) -> None:
    """What is exported reads back equal, and is imported without a protected header."""
    found = _read(table)
    archived = read_line(write_line(Received("dlq", "", "dlq", b"body", found))).properties
    assert (archived.further_headers, archived.opaque_headers) == (
        found.further_headers,
        found.opaque_headers,
    )
    assert encode_entries(archived.headers) == encode_entries(found.headers)
    names = {name for name, _ in _walked(_published(properties_for_move(archived)))}
    assert not names & _PROTECTED


@given(st.integers(125_000, 131_060), st.integers(1, 6000), st.sampled_from(_WRITERS))
@example(131_019, 1, _WRITERS[0])
@example(131_019, 1, _WRITERS[-1])
@matters
def test_what_nobody_read_is_cut_last_and_that_is_said(
    ballast: int, unread: int, write: Callable[[Properties], Properties | None]
) -> None:
    """The frame always holds; where room is short the bytes are cut, and their length is told."""
    found = Properties(headers={"b": b"b" * (ballast - unread)}, opaque_headers=b"z" * unread)
    written = write(found)
    if written is None or frame_size(written) > FRAME_BYTES:
        assert frame_size(found) > FRAME_BYTES - 400
        return
    if "b" not in written.headers:  # no room beside our own headers: parked without its largest one
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
