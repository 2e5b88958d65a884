"""A re-driven message made from bytes equals one made from values, or is not made."""

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
from hopback.headers.raw import cut_properties, message_id_in, priority_in, text_header_in
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


def _known_headers(queue: str) -> st.SearchStrategy[dict[str, Any]]:
    """Valid and arbitrary values of headers that Hopback or the broker reads."""
    valid: dict[str, Any] = {
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
    some = st.sets(st.sampled_from(sorted(valid))).map(
        lambda names: {name: valid[name] for name in names}
    )
    odd = st.dictionaries(
        st.sampled_from(sorted({*valid, *OURS, "CC", "BCC", "x-delivery-count"})),
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
    """Return the names of the message's own headers in their order. The order of Hopback's headers
    is undefined.
    """
    return [name for name in properties.headers if name not in OURS]


def _agree(plan: Plan, raw: bytes, quick: Redriver | None = None) -> RawMessage | None:
    """Compare both paths. Return the message made from bytes, or None."""
    made = (quick or Redriver(plan, plan.redrive, _OCCASION)).raw_message(_delivery(plan, raw))
    if made is None:
        return None
    careful = redrive_message(_delivery(plan, raw), plan, _OCCASION)
    assert (made.exchange, made.routing_key, made.body) == (
        careful.exchange,
        careful.routing_key,
        careful.body,
    )
    found = decode_properties(made.raw_properties)
    # Encoded and decoded, as the next consumer reads it.
    expected = decode_properties(encode_properties(careful.properties))
    assert found == expected
    assert _kept_names(found) == _kept_names(expected)
    assert {name: type(value) for name, value in found.headers.items()} == {
        name: type(value) for name, value in expected.headers.items()
    }
    return made


@given(st.sampled_from(_PLANS), properties, st.data())
def test_bytes_and_values_agree(plan: Plan, made: Properties, data: st.DataObject) -> None:
    """For every plan, all properties and all headers with a meaning."""
    more = data.draw(_known_headers(plan.queue))
    raw = encode_properties(replace(made, headers={**made.headers, **more}))
    quick = Redriver(plan, plan.redrive, _OCCASION)
    for _ in range(2):  # the second message uses the cache of deaths
        _agree(plan, raw, quick)


_EARLIER_DEATHS = '[{"queue":"old","reason":"expired","count":2}]'


@pytest.mark.parametrize(
    "remembered", [_EARLIER_DEATHS, [_EARLIER_DEATHS[:20], _EARLIER_DEATHS[20:]]]
)
def test_earlier_deaths_are_kept_as_bytes(remembered: FieldValue) -> None:
    """In pieces and as the single text of 0.1.0. They follow the deaths of the broker."""
    headers = {"x-death": _deaths(_PLAN.queue), "hopback-deaths": remembered}
    made = _agree(_PLAN, encode_properties(Properties(headers=headers)))
    assert made is not None
    known = read_deaths(decode_properties(made.raw_properties).headers)
    assert len(known) > 1
    assert (known[-1].queue, known[-1].count) == ("old", 2)


@given(st.sampled_from(_PLANS), properties, st.data())
def test_changed_bytes_give_the_same_message_or_none(
    plan: Plan, made: Properties, data: st.DataObject
) -> None:
    more = data.draw(_known_headers(plan.queue))
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
        except UnsafeOperation as error:
            pytest.fail(f"made from bytes, but refused by the careful path: {error}")


@given(st.sampled_from(_PLANS), properties, st.data())
def test_cache_does_not_change_messages(plan: Plan, made: Properties, data: st.DataObject) -> None:
    """Similar messages, valid and changed, are made as if each were the first."""
    quick = Redriver(plan, plan.redrive, _OCCASION)
    headers = {**made.headers, **data.draw(_known_headers(plan.queue))}
    for _ in range(data.draw(st.integers(2, 5))):
        names = st.sampled_from([*headers, "another"])
        change = st.dictionaries(names, st.text(max_size=5) | field_values, max_size=2)
        headers |= data.draw(change)
        raw = bytearray(encode_properties(replace(made, headers=headers)))
        _agree(plan, bytes(raw), quick)
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        uncached = Redriver(plan, plan.redrive, _OCCASION).raw_message(_delivery(plan, bytes(raw)))
        assert quick.raw_message(_delivery(plan, bytes(raw))) == uncached


@given(properties, st.binary(max_size=40))
def test_joined_pieces_of_properties_equal_the_properties(made: Properties, entries: bytes) -> None:
    """Other bytes have no pieces or the same ones."""
    raw = encode_properties(made)
    cut = cut_properties(raw)
    assert cut is not None
    assert message_id_in(raw) == made.message_id
    assert priority_in(raw) == made.priority
    assert cut.has_user == (made.user_id is not None)
    joined = decode_properties(cut.join(cut.entries))
    assert joined == replace(decode_properties(raw), delivery_mode=2, expiration=None)
    assert message_id_in(entries) is None or cut_properties(entries) is not None


@given(properties, st.data())
def test_single_header_is_found_without_decoding_the_others(
    made: Properties, data: st.DataObject
) -> None:
    """The text equals the decoded header. Changed bytes never give another text."""
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
_HEADERS: dict[str, Any] = {
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
        (_HEADERS, True),
        ({}, True),
        ({"n": 1, "x-death": _HEADERS["x-death"]}, True),
        (_HEADERS | {"hopback-queue": "another"}, True),
        (_HEADERS | {"hopback-redrives": 1}, False),
        (_HEADERS | {"hopback-unread-headers": b"x"}, False),
        (_HEADERS | {"nested": {"a": 1}}, False),
        (_HEADERS | {"CC": ["vault"]}, False),
        (_HEADERS | {"hopback-failure": "no record"}, False),
        (_HEADERS | {"hopback-failure": 1}, False),
        (_HEADERS | {"hopback-origin-exchange": "ü"}, False),
        (_HEADERS | {"hopback-origin-routing-key": 1}, False),
        (_HEADERS | {"big": "x" * 70_000}, False),
    ],
)
def test_usual_dead_letter_is_made_from_bytes_and_others_are_not(
    headers: dict[str, Any], is_quick: bool
) -> None:
    """Each condition for the careful path."""
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
        # A repeated header, a name that is not UTF-8, an unknown type, and a text beyond the end.
        b"\x20\x00\x00\x00\x00\x06\x01aV\x01aV",
        b"\x20\x00\x00\x00\x00\x03\x01\xffV",
        b"\x20\x00\x00\x00\x00\x03\x01aZ",
        b"\x20\x00\x00\x00\x00\x08\x01aS\x00\x00\x00\x09b",
        b"\x20\x00\x00\x00\x00\x02\x01a",
        # An invalid record of deaths.
        b"\x20\x00\x00\x00\x00\x0e\x07x-deathA\x00\x00\x00\x01Z",
        b"\x20\x00\x00\x00\x00\x15\x0ehopback-deathsA\x00\x00\x00\x01Z",
    ],
)
def test_invalid_properties_are_not_made_from_bytes(raw: bytes) -> None:
    quick = Redriver(_PLAN, _PLAN.redrive, _OCCASION)
    assert quick.raw_message(_delivery(_PLAN, raw)) is None


def test_failure_record_that_is_not_utf8_is_not_made_from_bytes() -> None:
    raw = encode_properties(Properties(headers=_HEADERS))
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
def test_cached_failure_records_match_only_if_their_digits_are_irrelevant(
    records: list[str], are_quick: list[bool]
) -> None:
    quick = Redriver(_PLAN, _PLAN.redrive, _OCCASION)
    for _ in range(2):
        for record, is_quick in zip(records, are_quick, strict=True):
            raw = encode_properties(Properties(headers=_HEADERS | {"hopback-failure": record}))
            assert (_agree(_PLAN, raw, quick) is not None) == is_quick


def test_names_and_deaths_beyond_the_cache_give_the_same_messages() -> None:
    quick = Redriver(_PLAN, _PLAN.redrive, _OCCASION)
    for number in range(1100):
        headers: dict[str, Any] = {
            f"name-{number}": number,
            "x-death": [_DEATH | {"count": number + 1}],
        }
        assert _agree(_PLAN, encode_properties(Properties(headers=headers)), quick) is not None


def test_header_orders_and_routes_beyond_the_cache_give_the_same_messages() -> None:
    quick = Redriver(_PLAN, _PLAN.redrive, _OCCASION)
    for number in range(600):
        headers = dict.fromkeys(
            [f"h{number % 100}", "tenant", f"h{number % 7}"], "x" * (number % 3)
        )
        headers["hopback-origin-routing-key"] = f"orders.{number}"
        assert _agree(_PLAN, encode_properties(Properties(headers=headers)), quick) is not None


def test_messages_of_one_shape_are_made_independently() -> None:
    """Kept, read and dropped values differ between messages, and shapes alternate."""
    quick = Redriver(_PLAN, _PLAN.redrive, _OCCASION)
    for number in range(12):
        headers = _HEADERS | {
            "tenant": "x" * (number % 4),
            "n": number,
            "hopback-attempts": number % 3,
            "hopback-origin-routing-key": f"orders.{number}",
            "last": "the same" if number < 8 else "another",
        }
        assert _agree(_PLAN, encode_properties(Properties(headers=headers)), quick) is not None
        other = encode_properties(Properties(headers={"n": number, "tenant": "acme"}))
        assert _agree(_PLAN, other, quick) is not None


def test_kept_deaths_and_stamps_require_the_careful_path() -> None:
    raw = encode_properties(Properties(headers=_HEADERS))
    kept = replace(_PLAN.redrive, keep_deaths=True)
    stamped = _OCCASION._replace(stamped=True)
    for redrive, occasion in ((kept, _OCCASION), (_PLAN.redrive, stamped)):
        assert Redriver(_PLAN, redrive, occasion).raw_message(_delivery(_PLAN, raw)) is None


def test_origin_that_is_not_ascii_requires_the_careful_path() -> None:
    """If only the delivery contains the origin."""
    made = Delivered(
        1, 7, False, b"c", b"\x02ex\x02\xc3\xbc", encode_properties(Properties()), b"body"
    )
    made.queue = _PLAN.parking.queue
    assert Redriver(_PLAN, _PLAN.redrive, _OCCASION).raw_message(made) is None


def test_stamps_of_the_origin_require_the_careful_path() -> None:
    """The design's headers may contain the origin."""
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
