"""Convert AMQP values to JSON and TOML without losing their type.

Booleans, 64-bit integers, floats, strings, arrays and tables are written as they are. Other AMQP
types are written as a table with a single key that starts with `$`::

    { "$int32" = 5 }   { "$timestamp" = 1700000000 }   { "$bytes" = "aGVsbG8=" }   { "$none" = true }

A table that looks like this is escaped: `{ "$table" = { "$x" = 1 } }`.
"""

from __future__ import annotations

import math
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from hopback.fields import (
    FieldValue,
    Float32,
    Headers,
    Int8,
    Int16,
    Int32,
    LongStr,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)
from hopback.topology.wording import did_you_mean, either, quote, show_value

if TYPE_CHECKING:
    from hopback.topology.located import Located
    from hopback.topology.model import Topology

DEEPEST = 32
"""Maximum nesting depth of arrays and tables."""

INTEGER_RANGES: Mapping[type, tuple[int, int]] = {
    Int8: (-(2**7), 2**7 - 1),
    UInt8: (0, 2**8 - 1),
    Int16: (-(2**15), 2**15 - 1),
    UInt16: (0, 2**16 - 1),
    Int32: (-(2**31), 2**31 - 1),
    UInt32: (0, 2**32 - 1),
    int: (-(2**63), 2**63 - 1),
    UInt64: (0, 2**64 - 1),
    Timestamp: (0, 2**64 - 1),
}
"""The range of each integer type."""

_HUGE = sys.float_info.max

_INTEGERS: Mapping[str, type[int]] = {
    f"${kind.__name__.lower()}": kind for kind in INTEGER_RANGES if kind is not int
}
_INTEGER_MARKS: Mapping[type, str] = {kind: mark for mark, kind in _INTEGERS.items()}


def encode_table(table: Headers) -> dict[str, object]:
    """Convert a table of AMQP values to plain values."""
    return {str(key): encode(value) for key, value in table.items()}


def encode(value: FieldValue) -> object:
    """Convert an AMQP value to a plain value."""
    mark = _INTEGER_MARKS.get(type(value))
    match value:
        case bool():
            return value
        case int():
            return {mark: int(value)} if mark else int(value)
        case float():
            plain: object = float(value) if math.isfinite(value) else str(float(value))
            if isinstance(value, Float32):
                return {"$float32": plain}
            return plain if isinstance(plain, float) else {"$float": plain}
        case str():
            return str(value)
        case Mapping():
            inner = encode_table(value)
            return {"$table": inner} if _is_typed(inner) else inner
        case list() | tuple():
            return [encode(item) for item in value]
        case None:
            return {"$none": True}
        case Decimal():
            return {"$decimal": str(value)}
        case bytes():
            rare = "$longstr" if isinstance(value, LongStr) else "$bytes"
            return {rare: b64encode(value).decode("ascii")}
    raise TypeError(f"expected an AMQP field value, got {type(value).__name__}")


def decode_table(place: Located, *, marks: bool = True) -> dict[str, FieldValue]:
    """Convert a table of plain values to AMQP values."""
    return {key: decode(inner, marks=marks) for key, inner in place.entries()}


def decode(place: Located, depth: int = 0, *, marks: bool = True) -> FieldValue:
    """Convert a plain value to an AMQP value.

    If `marks` is False, keys that start with `$` have no special meaning.
    """
    if depth > DEEPEST:
        place.wrong(f"at most {DEEPEST} levels of nesting", "more")
        return None
    match place.value:
        case bool() | float() | str() | None:
            return place.value
        case int():
            return _integer(place, int)
        case list() | tuple():
            return tuple(decode(item, depth + 1, marks=marks) for item in place.items())
        case Mapping() as table if marks and _is_typed(table):
            mark = next(iter(table))
            value = place.inner(mark, table[mark])
            if mark in _INTEGERS:
                return _integer(value, _INTEGERS[mark])
            if mark in _RARE:
                return _RARE[mark](value)
            if mark == "$table":
                return {key: decode(item, depth + 1) for key, item in value.entries()}
            known = sorted((*_INTEGERS, *_RARE, "$table"))
            value.wrong(f"one of {', '.join(known)}", show_value(mark) + did_you_mean(mark, known))
            return None
        case Mapping():
            return {key: decode(item, depth + 1, marks=marks) for key, item in place.entries()}
    place.wrong("an AMQP value: true, false, a number, text, an array or a table")
    return None


def _is_typed(table: Mapping[str, object]) -> bool:
    """Return True if the table represents a typed value."""
    return len(table) == 1 and str(next(iter(table))).startswith("$")


def _integer(place: Located, kind: type[int]) -> FieldValue:
    low, high = INTEGER_RANGES[kind]
    value = place.value
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return kind(value)
    place.wrong(f"a whole number from {low} to {high}")
    return 0


def _number(place: Located) -> float:
    value = place.value
    if value in ("nan", "inf", "-inf"):
        return float(str(value))
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _HUGE:
        return float(value)
    place.wrong(f"a number, {either(('nan', 'inf', '-inf'))}")
    return 0.0


def _decimal(place: Located) -> Decimal:
    try:
        value = Decimal(place.value if isinstance(place.value, str) else "")
    except InvalidOperation:
        value = Decimal("NaN")
    if fits_decimal(value):
        return value
    place.wrong("a decimal number as text, of at most 32 bits and 255 decimal places")
    return Decimal(0)


def fits_decimal(value: Decimal) -> bool:
    """Return True if the value can be encoded as an AMQP decimal."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not -255 <= exponent <= 0 or len(digits) > 10:
        return False
    low, high = INTEGER_RANGES[Int32]
    return low <= int(value.scaleb(-exponent)) <= high


def _bytes(place: Located) -> bytes:
    if isinstance(place.value, str):
        try:
            return b64decode(place.value, validate=True)
        except ValueError:
            pass
    place.wrong("bytes in Base64")
    return b""


def _none(place: Located) -> None:
    if place.value is not True:
        place.wrong("true")


_RARE: Mapping[str, Callable[[Located], FieldValue]] = {
    "$bytes": _bytes,
    "$decimal": _decimal,
    "$float": _number,
    "$float32": lambda place: Float32(_number(place)),
    "$longstr": lambda place: LongStr(_bytes(place)),
    "$none": _none,
}


def remove_non_json_arguments(topology: Topology) -> tuple[Topology, tuple[str, ...]]:
    """Remove arguments that JSON cannot represent, and return a note for each of them.

    If a binding has such an argument, the whole binding is removed, because it would match more
    messages without the argument.
    """
    notes: list[str] = []
    exchanges = tuple(
        replace(item, arguments=_kept(f"exchange {quote(item.name)}", item.arguments, notes))
        for item in topology.exchanges
    )
    queues = tuple(
        replace(item, arguments=_kept(f"queue {quote(item.name)}", item.arguments, notes))
        for item in topology.queues
    )
    policies = tuple(
        replace(item, definition=_kept(f"policy {quote(item.name)}", item.definition, notes))
        for item in topology.policies
    )
    bindings = tuple(item for item in topology.bindings if _writable(item.arguments))
    notes += [
        f"binding {quote(item.source)} → {quote(item.destination)} left out:"
        " JSON cannot represent one of its arguments"
        for item in topology.bindings
        if not _writable(item.arguments)
    ]
    fitting = replace(
        topology, exchanges=exchanges, queues=queues, bindings=bindings, policies=policies
    )
    return fitting, tuple(notes)


def _kept(owner: str, table: Headers, notes: list[str]) -> Headers:
    left_out = [key for key, value in table.items() if not _writable(value)]
    notes += [
        f"{owner}: {quote(key)} left out: JSON cannot represent a {type(table[key]).__name__}"
        for key in left_out
    ]
    return {key: value for key, value in table.items() if key not in left_out}


def _writable(value: FieldValue) -> bool:
    match value:
        case Timestamp() | Decimal() | bytes():
            return False
        case int():
            return -(2**63) <= value < 2**63
        case float():
            return math.isfinite(value)
        case Mapping():
            return all(_writable(inner) for inner in value.values())
        case list() | tuple():
            return all(_writable(item) for item in value)
    return True
