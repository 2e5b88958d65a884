"""Cached headers, encoders and failure records: no message receives anything of another one."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback import text
from hopback.fields import Int8, LayeredHeaders, LongStr, SharedHeaders, UInt64
from hopback.headers import (
    Failure,
    Mark,
    failure,
    failure_from_exception,
    history,
    park_properties,
    redrive_properties,
    retry_properties,
    rewrite,
)
from hopback.headers.names import OURS
from hopback.message import NO_HEADERS, Properties
from hopback.wire import properties as wire_properties
from hopback.wire import tables
from hopback.wire.properties import decode_properties, encode_properties
from hopback.wire.tables import encode_entries
from tests.properties.field_values import field_values, properties
from tests.properties.hostile import no_deadline

if TYPE_CHECKING:
    from collections.abc import Callable

_CACHES = [
    found
    for module in (text, failure, history, rewrite, tables, wire_properties)
    for found in vars(module).values()
    if hasattr(found, "cache_clear")
]

# Equal keys of different types. A cache that treats them as the same mixes messages up.
_EQUAL = (
    True, 1, 1.0, Int8(1), UInt64(1), Decimal(1), "1", b"1", LongStr(b"1\xff"), None, "",
)  # fmt: skip
_names = st.sampled_from((*sorted(OURS), "u-a", "u-b", "x-retries", "x-death"))
_headers = st.dictionaries(_names, st.sampled_from(_EQUAL) | field_values, max_size=6)
_texts = st.none() | st.sampled_from(("", "1", "k", "ü", "\udcff", "k" * 255))
_failures = st.builds(
    Failure,
    type=st.sampled_from(("", "E", "1")),
    message=st.sampled_from(("", "no", "ü", "\udcff")),
    stack=st.sampled_from(("", "a:b:1", "ü")),
    last=st.sampled_from((0.0, 1.0)),
    attempts=st.sampled_from((0, 1)),
)
_marks = st.builds(
    Mark,
    queue=st.sampled_from(("q", "1", "ü")),
    attempts=st.integers(0, 2),
    snoozes=st.integers(0, 2),
    origin_exchange=_texts,
    origin_routing_key=_texts,
    failure=st.none() | _failures,
    redrives=st.none() | st.integers(0, 2),
    redrive_job=_texts | st.just("j" * 400),
    copy_id=_texts,
    counters=st.sampled_from(({}, {"x-retries": 1})),
    design=st.sampled_from(({}, {"x-parked": True}, {"x-parked": 1})),
)
_WRITERS: tuple[Callable[[Properties, Mark], Properties | None], ...] = (
    retry_properties,
    park_properties,
    redrive_properties,
)
_users = st.sampled_from((None, "alice", "\udcff"))
_messages = st.tuples(
    st.builds(Properties, headers=_headers, user_id=_users), _marks, st.sampled_from(_WRITERS)
)


def _forget() -> None:
    for cache in _CACHES:
        cache.cache_clear()


def _written(one: tuple[Properties, Mark, Callable[..., Properties | None]]) -> bytes | None:
    found, mark, write = one
    made = write(found, mark)
    return None if made is None else encode_properties(made)


@given(st.lists(_messages, min_size=2, max_size=8))
@no_deadline
def test_message_written_after_others_is_the_same_as_written_alone(
    messages: list[tuple[Properties, Mark, Callable[..., Properties | None]]],
) -> None:
    _forget()
    beside = [_written(one) for one in (*messages, *messages)]
    alone = []
    for one in messages:
        _forget()
        alone.append(_written(one))
    assert beside == alone + alone


@given(_messages)
@no_deadline
def test_layered_headers_are_encoded_like_a_plain_table(
    one: tuple[Properties, Mark, Callable[..., Properties | None]],
) -> None:
    found, mark, write = one
    made = write(found, mark)
    assert made is not None
    plain = dict(made.headers)
    assert encode_entries(made.headers) == encode_entries(plain)
    read = decode_properties(encode_properties(made)).headers
    assert list(map(repr, read.items())) == list(map(repr, plain.items()))


@given(properties, st.randoms(use_true_random=False), st.booleans(), st.sampled_from((None, 2)))
@no_deadline
def test_properties_are_encoded_the_same_in_any_order_of_creation(
    given_properties: Properties, chance: Any, has_none: bool, mode: int | None
) -> None:
    """Properties.of keeps the order of its argument and may lack any of the fields."""
    whole = {each.name: getattr(given_properties, each.name) for each in fields(Properties)}
    present = [name for name, value in whole.items() if has_none or value is not None]
    chance.shuffle(present)
    made = Properties.of({name: whole[name] for name in present})
    expected = encode_properties(given_properties, default_mode=mode)
    assert encode_properties(made, default_mode=mode) == expected


def test_absent_headers_stay_absent_after_a_message_with_headers() -> None:
    assert encode_properties(Properties(headers={"a": 1})) != b"\x00\x00"
    assert encode_properties(Properties()) == b"\x00\x00"
    assert encode_properties(Properties.of({})) == b"\x00\x00"
    assert Properties.of({}).headers is NO_HEADERS


def _layered() -> LayeredHeaders:
    return LayeredHeaders({"u-a": [1]}, SharedHeaders({"hopback-queue": "q"}))


@pytest.mark.parametrize(
    "change",
    [
        lambda headers: headers.__setitem__("u-a", 2),
        lambda headers: headers.__delitem__("u-a"),
        lambda headers: headers.__ior__({"u-b": 1}),
        lambda headers: headers.update(b=1),
        lambda headers: headers.setdefault("b", 1),
        lambda headers: headers.pop("u-a"),
        lambda headers: headers.popitem(),
        lambda headers: headers.clear(),
    ],
)
@pytest.mark.parametrize("make", [_layered, lambda: _layered().shared])
def test_headers_with_a_cached_form_cannot_be_changed(
    make: Callable[[], Any], change: Callable[[Any], object]
) -> None:
    """A change would be missing on the wire, or would reach every message with the same counts."""
    headers = make()
    before = dict(headers)
    with pytest.raises(TypeError, match="a copy of the headers"):
        change(headers)
    assert dict(headers) == before


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, dict.copy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_copy_of_layered_headers_is_a_plain_dict(copied: Callable[[Any], Any]) -> None:
    headers = _layered()
    made = copied(headers)
    made["u-b"] = 1
    assert type(made) is dict
    assert made == {"u-a": [1], "hopback-queue": "q", "u-b": 1}
    assert encode_entries(made) != encode_entries(headers)


@given(st.lists(st.tuples(st.sampled_from((ValueError, KeyError)), st.integers(0, 3)), max_size=8))
@no_deadline
def test_failure_record_is_that_of_its_own_exception(raised: list[tuple[Any, int]]) -> None:
    """Whatever failed before in the same place, with the same text or in the same process."""
    _forget()
    beside = [failure_from_exception(_raised(*one)) for one in raised]
    alone = []
    for one in raised:
        _forget()
        alone.append(failure_from_exception(_raised(*one)))
    assert beside == alone
    assert [one.type for one in beside] == [kind.__name__ for kind, _ in raised]


def _raised(kind: type[Exception], depth: int) -> BaseException:
    try:
        _raise(kind, depth)
    except Exception as error:
        return error
    raise AssertionError


def _raise(kind: type[Exception], depth: int) -> None:
    if depth == 0:
        raise kind("no")
    _raise(kind, depth - 1)
