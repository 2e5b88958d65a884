"""A re-driven message made of bytes says the same as one made of values, or is not made at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.designs import DESIGNS
from hopback.errors import UnsafeOperation
from hopback.headers import Failure, failure_json, read_deaths
from hopback.headers.names import OURS
from hopback.headers.raw import cut_properties, message_id_in, text_header_in
from hopback.message import Properties
from hopback.policy.redrive import RedriveOccasion, Redriver, redrive_message
from hopback.topology.plan import Fact
from hopback.wire.events import Delivered
from hopback.wire.properties import decode_properties, encode_properties
from tests.properties.field_values import field_values, properties

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.policy.redrive import RawMessage
    from hopback.topology.plan import Plan

_PLANS = [
    plan
    for design in DESIGNS.values()
    for hardened in (False, True)
    for plan in design.build(hardened=hardened).plans
]
_OCCASION = RedriveOccasion(1_700_000_000.0, "j-1")
_RECORD = failure_json(
    Failure("shop.errors.UnknownArticle", "no article 4711", first=1.0, last=2.0)
)
_DEATH: dict[str, Any] = {
    "count": 1,
    "exchange": "shop",
    "queue": "orders",
    "reason": "rejected",
    "routing-keys": ["orders.created"],
}


def _deaths(queue: str) -> list[dict[str, Any]]:
    return [_DEATH | {"queue": queue}, _DEATH | {"reason": "expired"}]


def _telling(queue: str) -> st.SearchStrategy[dict[str, Any]]:
    """Headers that mean something to us or to the broker, sound ones and odd ones."""
    sound: dict[str, Any] = {
        "x-death": _deaths(queue),
        "x-first-death-queue": queue,
        "hopback-queue": queue,
        "hopback-attempts": 3,
        "hopback-snoozes": 1,
        "hopback-lineage": "abc",
        "hopback-failure": _RECORD,
        "hopback-deaths": ['[{"queue":"a","reason":"exp', 'ired","count":2}]'],
        "hopback-origin-routing-key": "orders.created",
        "hopback-origin-exchange": "shop",
        "x-original-routing-key": "orders.updated",
        "x-retry-count": 2,
        "hopback-future": {"a": 1},
        "hopback-delay": "later",
        "x-tenant": "acme",
    }
    some = st.sets(st.sampled_from(sorted(sound))).map(
        lambda names: {name: sound[name] for name in names}
    )
    odd = st.dictionaries(
        st.sampled_from(sorted({*sound, *OURS, "CC", "BCC", "x-delivery-count"})),
        field_values,
        max_size=2,
    )
    return st.builds(lambda one, other: one | other, some, odd)


def _delivery(plan: Plan, raw: bytes) -> Delivered:
    route = b"\x02ex\x03key"
    made = Delivered(1, 7, False, b"c", route, raw, b"body")
    made.queue = plan.parking.queue
    return made


def _kept_names(properties: Properties) -> list[str]:
    """Return the names of the message's own headers in their order. That of ours is not promised."""
    return [name for name in properties.headers if name not in OURS]


def _agree(plan: Plan, raw: bytes, quick: Redriver | None = None) -> RawMessage | None:
    """Compare both ways; the message made of bytes, if there was one."""
    made = (quick or Redriver(plan, plan.redrive, _OCCASION)).raw_message(_delivery(plan, raw))
    if made is None:
        return None
    careful = redrive_message(_delivery(plan, raw), plan, _OCCASION)
    assert (made.exchange, made.routing_key, made.body) == (
        careful.exchange,
        careful.routing_key,
        careful.body,
    )
    said = decode_properties(made.raw_properties)
    # What was written and read again, since that is what the next consumer gets.
    expected = decode_properties(encode_properties(careful.properties))
    assert said == expected
    assert _kept_names(said) == _kept_names(expected)
    assert {name: type(value) for name, value in said.headers.items()} == {
        name: type(value) for name, value in expected.headers.items()
    }
    return made


@given(st.sampled_from(_PLANS), properties, st.data())
def test_bytes_and_values_agree(plan: Plan, made: Properties, data: st.DataObject) -> None:
    """For every plan, every property and every header that means something to anyone."""
    more = data.draw(_telling(plan.queue))
    raw = encode_properties(replace(made, headers={**made.headers, **more}))
    quick = Redriver(plan, plan.redrive, _OCCASION)
    for _ in range(2):  # the second time its deaths are known
        _agree(plan, raw, quick)


_REMEMBERED = '[{"queue":"old","reason":"expired","count":2}]'


@pytest.mark.parametrize("remembered", [_REMEMBERED, [_REMEMBERED[:20], _REMEMBERED[20:]]])
def test_deaths_that_are_remembered_go_on_as_bytes(remembered: FieldValue) -> None:
    """In pieces, and as the one text of 0.1.0; they stand behind what the broker records."""
    headers = {"x-death": _deaths(_PLAN.queue), "hopback-deaths": remembered}
    made = _agree(_PLAN, encode_properties(Properties(headers=headers)))
    assert made is not None
    known = read_deaths(decode_properties(made.raw_properties).headers)
    assert len(known) > 1
    assert (known[-1].queue, known[-1].count) == ("old", 2)


@given(st.sampled_from(_PLANS), properties, st.data())
def test_broken_bytes_are_left_to_the_careful_way(
    plan: Plan, made: Properties, data: st.DataObject
) -> None:
    """Bytes that were cut or changed anywhere give the same message, or none."""
    more = data.draw(_telling(plan.queue))
    raw = bytearray(encode_properties(replace(made, headers={**made.headers, **more})))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.integers(0, 255))
    broken = (
        bytes(raw[: data.draw(st.integers(0, len(raw)))])
        if data.draw(st.booleans())
        else bytes(raw)
    )
    quick = Redriver(plan, plan.redrive, _OCCASION)
    for _ in range(2):
        try:
            _agree(plan, broken, quick)
        except UnsafeOperation as refused:
            pytest.fail(f"the careful way refuses what was made of bytes: {refused}")


@given(st.sampled_from(_PLANS), properties, st.data())
def test_what_was_seen_before_changes_nothing(
    plan: Plan, made: Properties, data: st.DataObject
) -> None:
    """Messages that are alike, whole and broken: each is made as if it were the first one."""
    quick = Redriver(plan, plan.redrive, _OCCASION)
    headers = {**made.headers, **data.draw(_telling(plan.queue))}
    for _ in range(data.draw(st.integers(2, 5))):
        names = st.sampled_from([*headers, "another"])
        change = st.dictionaries(names, st.text(max_size=5) | field_values, max_size=2)
        headers |= data.draw(change)
        raw = bytearray(encode_properties(replace(made, headers=headers)))
        _agree(plan, bytes(raw), quick)
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        alone = Redriver(plan, plan.redrive, _OCCASION).raw_message(_delivery(plan, bytes(raw)))
        assert quick.raw_message(_delivery(plan, bytes(raw))) == alone


@given(properties, st.binary(max_size=40))
def test_cut_and_joined(made: Properties, entries: bytes) -> None:
    """The pieces of properties are what reading them finds; other bytes have none, or the same."""
    raw = encode_properties(made)
    cut = cut_properties(raw)
    assert cut is not None
    assert message_id_in(raw) == made.message_id
    assert cut.has_user == (made.user_id is not None)
    joined = decode_properties(cut.join(cut.entries))
    assert joined == replace(decode_properties(raw), delivery_mode=2, expiration=None)
    assert message_id_in(entries) is None or cut_properties(entries) is not None


@given(properties, st.data())
def test_one_header_is_found_without_the_others(made: Properties, data: st.DataObject) -> None:
    """A text is what reading all headers finds; whole or broken bytes never give another one."""
    headers = {**made.headers, "hopback-failure": data.draw(st.text() | field_values)}
    raw = bytearray(encode_properties(replace(made, headers=headers)))
    name = data.draw(st.sampled_from([*headers, "absent"]))
    if data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    found = text_header_in(bytes(raw), name.encode())
    read = _delivery(_PLANS[0], bytes(raw)).properties.headers.get(name)
    assert found == read if isinstance(read, str) else found is None


_PLAN = next(
    plan for plan in _PLANS if plan.redrive.reset and not (plan.retry_stamps or plan.park_stamps)
)
_SOUND: dict[str, Any] = {
    "tenant": "acme",
    "x-death": _deaths(_PLAN.queue),
    "hopback-queue": _PLAN.queue,
    "hopback-attempts": 3,
    "hopback-failure": _RECORD,
    "hopback-origin-routing-key": "orders.created",
    "hopback-origin-exchange": "shop",
    "n": 1,
}


@pytest.mark.parametrize(
    ("headers", "is_quick"),
    [
        (_SOUND, True),
        ({}, True),
        ({"n": 1, "x-death": _SOUND["x-death"]}, True),
        (_SOUND | {"hopback-queue": "another"}, True),
        (_SOUND | {"hopback-redrives": 1}, False),
        (_SOUND | {"hopback-unread-headers": b"x"}, False),
        (_SOUND | {"nested": {"a": 1}}, False),
        (_SOUND | {"CC": ["vault"]}, False),
        (_SOUND | {"hopback-failure": "no record"}, False),
        (_SOUND | {"hopback-failure": 1}, False),
        (_SOUND | {"hopback-origin-exchange": "ü"}, False),
        (_SOUND | {"hopback-origin-routing-key": 1}, False),
        (_SOUND | {"big": "x" * 70_000}, False),
    ],
)
def test_what_is_made_of_bytes(headers: dict[str, Any], is_quick: bool) -> None:
    """The usual dead letter is; each reason for care is left to the careful way."""
    made = _agree(_PLAN, encode_properties(Properties(message_id="m", headers=headers)))
    assert (made is not None) == is_quick


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        b"\x00\x01",
        b"\x80\x00\x05ab",
        b"\x20\x00\x00\x00\x00\x09\x01aV",
        # A header twice, one whose name is no UTF-8, an unknown type, and a text beyond the end.
        b"\x20\x00\x00\x00\x00\x06\x01aV\x01aV",
        b"\x20\x00\x00\x00\x00\x03\x01\xffV",
        b"\x20\x00\x00\x00\x00\x03\x01aZ",
        b"\x20\x00\x00\x00\x00\x08\x01aS\x00\x00\x00\x09b",
        b"\x20\x00\x00\x00\x00\x02\x01a",
        # A record of deaths that is broken inside.
        b"\x20\x00\x00\x00\x00\x0e\x07x-deathA\x00\x00\x00\x01Z",
        b"\x20\x00\x00\x00\x00\x15\x0ehopback-deathsA\x00\x00\x00\x01Z",
    ],
)
def test_bytes_that_are_no_properties(raw: bytes) -> None:
    """Whatever a broker passes on, nothing is made of it by halves."""
    quick = Redriver(_PLAN, _PLAN.redrive, _OCCASION)
    assert quick.raw_message(_delivery(_PLAN, raw)) is None


def test_a_failure_that_is_no_text() -> None:
    """A record that is not UTF-8 is left to the careful way."""
    raw = encode_properties(Properties(headers=_SOUND))
    broken = raw.replace(b"no article 4711", b"no article \xff\xff\xff\xff")
    assert broken != raw
    assert Redriver(_PLAN, _PLAN.redrive, _OCCASION).raw_message(_delivery(_PLAN, broken)) is None


@pytest.mark.parametrize(
    ("records", "are_quick"),
    [
        (['{"at":"12:00","attempts":12}', '{"at":"09:59","attempts":10}'], [True, True]),
        (['{"at":"12:00","attempts":12}', '{"at":"09:59","attempts":02}'], [True, False]),
        (['{"at":10,"attempts":1}', '{"at":00,"attempts":1}'], [True, False]),
        (['{"a":10,"a":"1","n":1}', '{"a":00,"a":"1","n":1}'], [True, False]),
        (['{"a":"1","n":-10}', '{"a":"1","n":-01}'], [True, False]),
        (['{"a":"1","n":1.5}', '{"a":"1","n":0.0}'], [True, True]),
        (['{"a":"1", "n":10}', '{"a":"1", "n":00}'], [True, False]),
        (['{"a":"\\u0041","n":9}', '{"a":"\\u9999","n":0}'], [True, True]),
        (['{"a":"ü","n":true}', '{"a":"ü","n":true}'], [True, True]),
    ],
)
def test_records_that_differ_in_digits(records: list[str], are_quick: list[bool]) -> None:
    """One is taken for sound by another only where its digits cannot matter."""
    quick = Redriver(_PLAN, _PLAN.redrive, _OCCASION)
    for _ in range(2):
        for record, is_quick in zip(records, are_quick, strict=True):
            raw = encode_properties(Properties(headers=_SOUND | {"hopback-failure": record}))
            assert (_agree(_PLAN, raw, quick) is not None) == is_quick


def test_names_and_deaths_beyond_what_is_remembered() -> None:
    """Endless names and deaths are judged anew, with the same outcome."""
    quick = Redriver(_PLAN, _PLAN.redrive, _OCCASION)
    for number in range(1100):
        headers: dict[str, Any] = {
            f"name-{number}": number,
            "x-death": [_DEATH | {"count": number + 1}],
        }
        assert _agree(_PLAN, encode_properties(Properties(headers=headers)), quick) is not None


def test_shapes_and_ways_in_beyond_what_is_remembered() -> None:
    """Endless orders of headers and endless routes are met anew, with the same outcome."""
    quick = Redriver(_PLAN, _PLAN.redrive, _OCCASION)
    for number in range(600):
        headers = dict.fromkeys(
            [f"h{number % 100}", "tenant", f"h{number % 7}"], "x" * (number % 3)
        )
        headers["hopback-origin-routing-key"] = f"orders.{number}"
        assert _agree(_PLAN, encode_properties(Properties(headers=headers)), quick) is not None


def test_messages_of_one_shape_are_made_as_if_each_were_the_first() -> None:
    """Values that go on, are read or are left out differ from message to message, and shapes take turns."""
    quick = Redriver(_PLAN, _PLAN.redrive, _OCCASION)
    for number in range(12):
        headers = _SOUND | {
            "tenant": "x" * (number % 4),
            "n": number,
            "hopback-attempts": number % 3,
            "hopback-origin-routing-key": f"orders.{number}",
            "last": "the same" if number < 8 else "another",
        }
        assert _agree(_PLAN, encode_properties(Properties(headers=headers)), quick) is not None
        other = encode_properties(Properties(headers={"n": number, "tenant": "acme"}))
        assert _agree(_PLAN, other, quick) is not None


def test_a_way_that_keeps_counts_or_deaths_needs_care() -> None:
    """Only where attempts begin anew, deaths go and nothing is stamped are all messages alike."""
    raw = encode_properties(Properties(headers=_SOUND))
    kept = replace(_PLAN.redrive, keep_deaths=True)
    stamped = _OCCASION._replace(stamped=True)
    for redrive, occasion in ((kept, _OCCASION), (_PLAN.redrive, stamped)):
        assert Redriver(_PLAN, redrive, occasion).raw_message(_delivery(_PLAN, raw)) is None


def test_a_way_in_that_is_not_ascii_needs_care() -> None:
    """Where the origin is only known by the delivery, its names decide."""
    made = Delivered(
        1, 7, False, b"c", b"\x02ex\x02\xc3\xbc", encode_properties(Properties()), b"body"
    )
    made.queue = _PLAN.parking.queue
    assert Redriver(_PLAN, _PLAN.redrive, _OCCASION).raw_message(made) is None


def test_a_design_that_names_the_origin_is_asked() -> None:
    """Where the design's own headers may name the origin, only reading them tells."""
    plan = next(
        plan
        for plan in _PLANS
        if plan.redrive.reset
        and not plan.redrive.keep_deaths
        and any(
            stamp.fact is Fact.ORIGIN_ROUTING_KEY
            for stamp in (*plan.retry_stamps, *plan.park_stamps)
        )
    )
    raw = encode_properties(Properties(headers={"n": 1}))
    assert Redriver(plan, plan.redrive, _OCCASION).raw_message(_delivery(plan, raw)) is None
