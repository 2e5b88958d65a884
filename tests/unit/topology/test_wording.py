"""Names and values in texts, and AMQP values in files."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from hopback.errors import Problem
from hopback.fields import FieldValue, Float32, Int8, LongStr, Timestamp
from hopback.topology.arguments import decode, encode
from hopback.topology.located import Located
from hopback.topology.wording import did_you_mean, either, path_to, quote, show_value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (Int8(5), "5"),
        (-(10**40), "a far larger number"),
        (Float32(1.5), "1.5"),
        ('a"\\\n', '"a\\"\\\\\\n"'),
        ({"a": 1}, "a table"),
        ({}, "an empty table"),
        ([1], "an array"),
        ((), "an empty array"),
        (date(2020, 1, 1), "a date or time"),
        (b"x", "a value of type bytes"),
    ],
)
def test_values_are_shown_as_in_files(value: object, text: str) -> None:
    assert show_value(value) == text


def test_paths_and_choices_are_formatted() -> None:
    assert path_to(path_to(path_to("", "queues"), "a.b"), 2) == 'queues."a.b"[2]'
    assert quote("x" * 100) == f'"{"x" * 60}…"'
    assert either(["a"]) == '"a"'
    assert either(["a", "b", "c"]) == '"a", "b" or "c"'
    assert either([]) == ""
    assert did_you_mean("ordrs", ["orders", "mails"]) == ' (did you mean "orders"?)'
    assert did_you_mean("zzz", ["orders"]) == ""


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Int8(5), {"$int8": 5}),
        (Timestamp(2**64 - 1), {"$timestamp": 2**64 - 1}),
        (5, 5),
        (1.5, 1.5),
        (float("-inf"), {"$float": "-inf"}),
        (Float32(0.5), {"$float32": 0.5}),
        (Float32("nan"), {"$float32": "nan"}),
        (None, {"$none": True}),
        (Decimal("1.50"), {"$decimal": "1.50"}),
        (b"hello", {"$bytes": "aGVsbG8="}),
        (LongStr(b"\xff"), {"$longstr": "/w=="}),
        ({"$x": 1}, {"$table": {"$x": 1}}),
        ({"$x": 1, "y": [None]}, {"$x": 1, "y": [{"$none": True}]}),
    ],
)
def test_every_amqp_type_has_a_spelling(value: FieldValue, written: object) -> None:
    assert encode(value) == written
    place = Located("v", written, [])
    read = decode(place)
    assert place.problems == []
    assert repr(encode(read)) == repr(written)
    assert type(read) in (type(value), dict)


@pytest.mark.parametrize(
    ("written", "path", "expected"),
    [
        ({"$int8": 128}, 'v."$int8"', "a whole number from -128 to 127"),
        ({"$int8": True}, 'v."$int8"', "a whole number from -128 to 127"),
        ({"$timestamp": -1}, 'v."$timestamp"', "a whole number from 0 to 18446744073709551615"),
        ({"$float32": "x"}, 'v."$float32"', 'a number, "nan", "inf" or "-inf"'),
        ({"$float": 10**400}, 'v."$float"', 'a number, "nan", "inf" or "-inf"'),
        ({"$decimal": "x"}, 'v."$decimal"', "a decimal number as text"),
        ({"$decimal": 1}, 'v."$decimal"', "a decimal number as text"),
        ({"$decimal": "Infinity"}, 'v."$decimal"', "a decimal number as text"),
        ({"$bytes": "?"}, 'v."$bytes"', "bytes in Base64"),
        ({"$longstr": 5}, 'v."$longstr"', "bytes in Base64"),
        ({"$none": False}, 'v."$none"', "true"),
        ({"$table": 5}, 'v."$table"', "a table"),
        ({"$int9": 5}, 'v."$int9"', "one of $bytes, $decimal"),
        (object(), "v", "an AMQP value"),
        (2**63, "v", "a whole number from -9223372036854775808"),
    ],
)
def test_invalid_spelling_is_reported_with_place(written: object, path: str, expected: str) -> None:
    place = Located("v", written, [])
    decode(place)
    (problem,) = place.problems
    assert problem.path == path
    assert problem.expected.startswith(expected)


def test_definitions_have_no_type_marks() -> None:
    assert decode(Located("v", {"$int8": {"$none": 1}}, []), marks=False) == {"$int8": {"$none": 1}}


def test_value_outside_amqp_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="expected an AMQP field value, got set"):
        encode({1})  # type: ignore[arg-type]


def test_places_collect_every_problem() -> None:
    root = Located("", {1: 2, "a": [True]}, [])
    entries = dict(root.entries())
    assert entries["a"].items()[0].integer() == 0
    assert root.problems == [
        Problem("", "text for every key", "1"),
        Problem("a[0]", "a whole number", "true"),
    ]
