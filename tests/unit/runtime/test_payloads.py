"""Payloads are decoded into the annotated type, or the message is undecodable."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

from hopback.runtime.payload import Undecodable, decoder_for, encode_payload


class Colour(Enum):
    """A choice."""

    RED = "red"


@dataclass
class Line:
    """Nested."""

    sku: str
    count: int = 1


@dataclass
class Order:
    """Most types that a payload may contain."""

    id: int
    lines: list[Line] = field(default_factory=list)
    colour: Colour | None = None
    price: Decimal = Decimal(0)
    on: date | None = None
    kind: Literal["new", "old"] = "new"


@dataclass
class Tree:
    """A dataclass that holds itself."""

    name: str
    children: list[Tree] = field(default_factory=list)


@dataclass
class Tagged:
    """A dataclass with a set, which is read as a set again."""

    tags: set[str]


@dataclass
class Picky:
    """A dataclass with an opinion."""

    id: int

    def __post_init__(self) -> None:
        raise KeyError("not in the catalogue")


class Struct(msgspec.Struct):
    """A msgspec model."""

    id: int


class Model(pydantic.BaseModel):
    """A pydantic model."""

    id: int


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UID = UUID("12345678123456781234567812345678")


@pytest.mark.parametrize(
    ("wanted", "body", "expected"),
    [
        (bytes, b"\xff\x00", b"\xff\x00"),
        (str, "grün".encode(), "grün"),
        (dict, b'{"a": [1, 2]}', {"a": [1, 2]}),
        (list, b"[1]", [1]),
        (int, b"7", 7),
        (float, b"7", 7.0),
        (bool, b"true", True),
        (Any, b'"x"', "x"),
        (int | str, b'"x"', "x"),
        (int | None, b"null", None),
        (list[int], b"[1, 2]", [1, 2]),
        (set[int], b"[1, 1]", {1}),
        (tuple[int, str], b'[1, "a"]', (1, "a")),
        (tuple[int, ...], b"[1, 2, 3]", (1, 2, 3)),
        (dict[str, int], b'{"a": 1}', {"a": 1}),
        (UUID, f'"{UID}"'.encode(), UID),
        (datetime, f'"{MOMENT.isoformat()}"'.encode(), MOMENT),
        (Struct, b'{"id": 1}', Struct(1)),
        (Model, b'{"id": 1}', Model(id=1)),
        (Tree, b'{"name": "a", "children": [{"name": "b"}]}', Tree("a", [Tree("b")])),
        (
            Order,
            b'{"id": 1, "lines": [{"sku": "x"}], "colour": "red", "price": "1.50",'
            b' "on": "2026-01-02", "kind": "old", "unknown": true}',
            Order(1, [Line("x")], Colour.RED, Decimal("1.50"), date(2026, 1, 2), "old"),
        ),
        (dict, "{}".encode("utf-16"), {}),
    ],
)
def test_payload_is_decoded_into_annotated_type(wanted: Any, body: bytes, expected: object) -> None:
    found = decoder_for(wanted)(body)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("wanted", "body", "told"),
    [
        (str, b"\xff", "UnicodeDecodeError"),
        (dict, b"{", "JSONDecodeError"),
        (dict, b"[" * 100_000, "RecursionError"),
        (dict, b"[]", "$: expected an object, got list"),
        (int, b"true", "$: expected an integer, got bool"),
        (int, b"1" * 5000, "ValueError"),
        (list[int], b'[1, "x"]', "[1]: expected an integer, got str"),
        (Order, b"{}", ".id: expected a value"),
        (Order, b'{"id": 1, "lines": [{"sku": 5}]}', ".lines[0].sku: expected text, got int"),
        (Order, b'{"id": 1, "colour": "blue"}', ".colour: expected one of ['red']"),
        (Order, b'{"id": 1, "kind": "odd"}', ".kind: expected one of ['new', 'old']"),
        (Tree, b'{"name": "a", "children": [{}]}', ".children[0].name: expected a value"),
        (Struct, b'{"id": "x"}', "ValidationError"),
        (Model, b'{"id": "x"}', "id: Input should be a valid integer"),
        (Picky, b'{"id": 1}', "KeyError"),
        (tuple[int, str], b"[1]", "$: expected a list of 2"),
    ],
)
def test_mismatched_payload_is_undecodable_with_position(
    wanted: Any, body: bytes, told: str
) -> None:
    with pytest.raises(Undecodable) as caught:
        decoder_for(wanted)(body)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "body"),
    [
        (int, b'"secret"'),
        (dict[str, int], b'{"secret@example.com": "secret"}'),
        (list[date], b'["secret"]'),
        (Literal["new"], b'"secret"'),
        (Colour, b'"secret"'),
        (int | UUID, b'"secret"'),
        (str, b"secret\xff"),
        (dict, b'{"a": secret}'),
        (Struct, b'{"id": "secret"}'),
        (Model, b'{"id": "secret"}'),
    ],
    ids=str,
)
def test_undecodable_reason_never_contains_payload(wanted: Any, body: bytes) -> None:
    """It would otherwise reach headers and logs."""
    with pytest.raises(Undecodable) as caught:
        decoder_for(wanted)(body)
    assert "secret" not in str(caught.value)


def test_order_of_union_decides_whatever_was_declared_before() -> None:
    """Python considers unions of the same types equal, also inside other types."""
    for first, second in ((date, str), (str, date)):
        assert type(decoder_for(first | second)(b'"2026-01-02"')) is first
        assert type(decoder_for(list[first | second])(b'["2026-01-02"]')[0]) is first  # type: ignore[valid-type]


def test_unsupported_payload_type_is_refused_at_declaration() -> None:
    with pytest.raises(TypeError, match="cannot decode a payload into"):
        decoder_for(complex)


@pytest.mark.parametrize(
    ("payload", "body", "content_type"),
    [
        (b"raw", b"raw", None),
        ("text", b"text", "text/plain"),
        ({"a": 1}, b'{"a":1}', "application/json"),
        (Line("x"), b'{"sku":"x","count":1}', "application/json"),
        ([UID, MOMENT.date(), Colour.RED], None, "application/json"),
        (Tagged({"new"}), b'{"tags":["new"]}', "application/json"),
        (Struct(1), b'{"id":1}', "application/json"),
        (Model(id=1), b'{"id":1}', "application/json"),
    ],
)
def test_payload_is_encoded_by_its_type(
    payload: object, body: bytes | None, content_type: str | None
) -> None:
    encoded, kind = encode_payload(payload)
    assert kind == content_type
    if body is not None:
        assert encoded == body
    else:
        assert json.loads(encoded) == [str(UID), "2026-01-02", "red"]


def test_payload_without_json_form_is_refused_by_type() -> None:
    with pytest.raises(TypeError, match="got object"):
        encode_payload({"a": object()})
