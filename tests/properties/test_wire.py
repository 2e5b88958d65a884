"""Encoding, decoding, settlements and confirms are correct for all inputs."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hopback.fields import FieldValue, table_size
from hopback.message import Properties
from hopback.wire import Delivered, Got, MethodReceived, Violation, WireConnection
from hopback.wire.confirms import Confirms, InFlight
from hopback.wire.events import ReturnedMessage, read_content
from hopback.wire.properties import decode_properties, encode_properties
from hopback.wire.settlement import Settlements
from hopback.wire.tables import (
    decode_entries,
    decode_table,
    encode_entries,
    encode_further,
    encode_table,
)
from tests.properties.field_values import properties, tables
from tests.properties.wire_capture import CAPTURE, listening_client


def _with_types(value: Any) -> Any:
    """Return the value with its types, so that 1, True and 1.0 differ."""
    if isinstance(value, dict):
        return {key: _with_types(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_types(inner) for inner in value]
    return type(value), repr(value)


@given(tables)
def test_decoded_table_has_equal_values_types_and_size(table: dict[str, FieldValue]) -> None:
    raw = encode_table(table)
    found, end = decode_table(raw)
    assert _with_types(found) == _with_types(table)
    assert list(found) == list(table)
    assert end == len(raw) == table_size(table)


@given(properties)
def test_decoded_properties_are_equal(given_properties: Properties) -> None:
    raw = encode_properties(given_properties)
    found = decode_properties(raw)
    assert found == given_properties
    assert encode_properties(found) == raw


@given(tables, st.binary(max_size=60))
def test_unreadable_table_is_preserved_completely(
    table: dict[str, FieldValue], rest: bytes
) -> None:
    """The unreadable rest stays bytes. A second hop decodes the same."""
    headers, further, opaque = decode_entries(encode_entries(table) + rest)
    again = decode_entries(encode_entries(headers) + encode_further(further) + opaque)
    assert encode_entries(again.headers) == encode_entries(headers)
    assert (again.further, again.opaque) == (further, opaque)
    assert table.keys() <= headers.keys()


@given(st.lists(st.integers(1, len(CAPTURE) - 1), max_size=12))
def test_read_boundaries_do_not_change_events(cuts: list[int]) -> None:
    """For a recorded session."""
    whole = _event_texts(listening_client(), [0, len(CAPTURE)])
    assert _event_texts(listening_client(), sorted({0, *cuts, len(CAPTURE)})) == whole
    assert len(whole) == 44


def _event_texts(client: WireConnection, edges: list[int]) -> list[str]:
    pieces = [CAPTURE[low:high] for low, high in itertools.pairwise(edges)]
    events = [event for piece in pieces for event in client.receive(piece)]
    assert not any(isinstance(event, Violation) for event in events)
    return [
        f"{event!r} {event.properties} {event.body!r}"
        if isinstance(event, Delivered)
        else repr(event)
        for event in events
    ]


def test_capture_contains_all_kinds_of_messages() -> None:
    """It contains retried deliveries with x-death, gets and a returned message."""
    events = listening_client().receive(CAPTURE)
    kinds = {type(event) for event in events}
    assert {Delivered, Got, ReturnedMessage, MethodReceived} <= kinds
    deaths = [
        event.properties.headers["x-death"]
        for event in events
        if isinstance(event, Delivered) and "x-death" in event.properties.headers
    ]
    assert len(deaths) >= 6


_Call = tuple[str, int]
_calls = st.lists(
    st.tuples(
        st.sampled_from(["deliver", "ack", "hold", "nack", "reject", "through", "flush"]),
        st.integers(0, 9),
    ),
    max_size=60,
)


@given(_calls)
def test_coalesced_acks_settle_exactly_the_requested_deliveries(calls: list[_Call]) -> None:
    """Each delivery is settled with the method that its caller used."""
    settlements, wanted, held, tag = Settlements(7), {}, [], 0
    broker: dict[int, str] = {}
    settled: dict[int, str] = {}
    for name, pick in calls:
        if name == "deliver":
            tag += 1
            held.append(tag)
            settlements.unsettled[tag] = True
            broker[tag] = ""
        elif name == "flush":
            _flush(settlements, broker, settled)
        elif name == "hold" and held:
            settlements.hold(held[pick % len(held)])
        elif held:
            selected = held[pick % len(held)]
            wanted.update(_settle(settlements, name, selected, held))
    _flush(settlements, broker, settled)
    assert settled == wanted
    kept = [tag for several in settlements.held for tag in several]
    assert kept == sorted(kept)
    assert sorted(broker) == sorted(held) == sorted([*settlements.unsettled, *kept])


def _settle(settlements: Settlements, name: str, tag: int, held: list[int]) -> dict[int, str]:
    """Call the method and return the expected settlements."""
    if name == "through":
        settlements.ack_through(tag)
        tags = [known for known in held if known <= tag]
        held[:] = [known for known in held if known > tag]
        return dict.fromkeys(tags, "ack")
    held.remove(tag)
    if name == "ack":
        settlements.ack(tag)
    elif name == "nack":
        settlements.nack(tag, requeue=False)
    else:
        settlements.reject(tag, requeue=False)
    return {tag: name}


def _flush(settlements: Settlements, broker: dict[int, str], settled: dict[int, str]) -> None:
    """Apply every frame like a broker that refuses unknown tags."""
    out: list[bytes] = []
    settlements.flush(out)
    for raw in out:
        name = {80: "ack", 90: "reject", 120: "nack"}[raw[10]]
        tag, several = int.from_bytes(raw[11:19], "big"), name == "ack" and raw[19] & 1
        tags = [known for known in broker if known <= tag] if several else [tag]
        assert several or tag in broker, f"{name} of a tag that is not held: {tag}"
        for known in tags:
            del broker[known]
            settled[known] = name


_sends = st.lists(
    st.tuples(
        st.sampled_from(["here", "gone"]), st.sampled_from(["", "x"]), st.sampled_from(["a", "b"])
    ),
    min_size=1,
    max_size=12,
)


@given(_sends, st.randoms(use_true_random=False), st.booleans())
def test_confirms_and_returns_resolve_their_own_publish(
    sends: list[tuple[str, str, str]], chance: Any, sorts_headers: bool
) -> None:
    """With equal IDs and bodies and any grouping and order of confirms."""
    confirms: Confirms[int] = Confirms()
    returns, tags = [], []
    for number, (key, body, header) in enumerate(sends):
        raw = _properties(header, "other", swap=False)
        confirms.add(InFlight(number, "", key, raw, body.encode(), True, 1.0))
        tags.append(number + 1)
        if key == "gone":
            returns.append((key, body, _properties(header, "other", swap=sorts_headers)))
    for key, body, raw in returns:
        assert confirms.take_back(_return(key, body, raw)) is not None
    fates = {}
    while tags:
        tag = chance.choice(tags)
        multiple = chance.random() < 0.3
        for publish in confirms.settle(tag, multiple=multiple):
            fates[publish.ticket] = publish.returned is None
        tags = [left for left in tags if left > tag] if multiple else [t for t in tags if t != tag]
        if multiple:
            tags = [left for left in tags if left - 1 not in fates]
    assert fates == {number: key == "here" for number, (key, _, _) in enumerate(sends)}


def _properties(first: str, second: str, *, swap: bool) -> bytes:
    headers: dict[str, FieldValue] = {"z": first, "y": second}
    if swap:
        headers = dict(sorted(headers.items()))
    return encode_properties(Properties(message_id="same", headers=headers))


def _return(key: str, body: str, raw: bytes) -> ReturnedMessage:
    method = b"\x01\x38\x08NO_ROUTE\x00" + bytes((len(key),)) + key.encode()
    found = read_content((60 << 16) | 50, 1, method, raw, body.encode())
    assert isinstance(found, ReturnedMessage)
    return found
