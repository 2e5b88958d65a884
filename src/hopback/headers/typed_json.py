"""Convert properties and headers to JSON without losing types.

Archives and the outbox use this format. Each header value is stored with the code of its AMQP type.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import fields
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from hopback.fields import (
    MAX_DEPTH,
    FieldValue,
    Float32,
    Headers,
    Int8,
    Int16,
    Int32,
    LongStr,
    RawValue,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    nests_deeper,
    text_bytes,
)
from hopback.message import NO_HEADERS, Properties

_INTEGERS: dict[type, str] = {
    Int8: "b", UInt8: "B", Int16: "s", UInt16: "u", Int32: "I", UInt32: "i", int: "l", UInt64: "L",
    Timestamp: "T",
}  # fmt: skip
_NAME_BYTES = 255  # maximum length of a header name in AMQP 0-9-1
_RANGES = {
    "b": (-(2**7), 2**7), "B": (0, 2**8), "s": (-(2**15), 2**15), "u": (0, 2**16), "I": (-(2**31), 2**31),
    "i": (0, 2**32), "l": (-(2**63), 2**63), "L": (0, 2**64), "T": (0, 2**64),
}  # fmt: skip
"""The range of each integer type. The maximum is exclusive."""


def _integer(kind: type, code: str) -> Callable[[Any], FieldValue]:
    low, end = _RANGES[code]

    def read(value: Any) -> FieldValue:
        if type(value) is not int or not low <= value < end:
            raise ValueError(f"expected an integer from {low} to {end - 1}, got {value!r}")
        made: FieldValue = kind(value)
        return made

    return read


def _decimal(value: Any) -> Decimal:
    sign, digits, scale = value
    found = Decimal((sign, tuple(map(int, digits)), -scale))
    if not (0 <= scale <= 255 and abs(int(digits)) < 2**31 + sign):
        raise ValueError(f"expected a decimal of 32 bits with at most 255 places, got {value!r}")
    return found


def _text(value: Any) -> str:
    text = str(value)
    text_bytes(text)  # raises ValueError for invalid surrogates
    return text


def _name(name: str) -> str:
    if text_bytes(name) > _NAME_BYTES:
        raise ValueError(f"expected a name of at most {_NAME_BYTES} bytes, got {name!r}")
    return name


_BY_CODE: dict[str, Callable[[Any], FieldValue]] = {
    **{code: _integer(kind, code) for kind, code in _INTEGERS.items()},
    "t": bool,
    "f": lambda value: Float32(float.fromhex(value)),
    "d": float.fromhex,
    "D": _decimal,
    "S": _text,
    "S64": lambda value: LongStr(b64decode(value, validate=True)),
    "x": lambda value: b64decode(value, validate=True),
    "V": lambda _value: None,
    "raw": lambda value: RawValue(b64decode(value, validate=True)),
    "A": lambda value: [_read_value(inner) for inner in value],
    "F": lambda value: {_name(name): _read_value(inner) for name, inner in value.items()},
}
_PLAIN = tuple(
    field.name
    for field in fields(Properties)
    if field.name not in {"headers", "further_headers", "opaque_headers"}
)
_NUMBERS = {"delivery_mode": 2**8, "priority": 2**8, "timestamp": 2**64}
"""Numeric properties with their exclusive maximum."""


def as_base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def properties_to_json(properties: Properties) -> dict[str, Any]:
    """Convert properties and headers to a JSON object."""
    plain = {name: getattr(properties, name) for name in _PLAIN}
    record: dict[str, Any] = {
        "properties": {name: value for name, value in plain.items() if value is not None},
    }
    if properties.has_headers:
        record["headers"] = {
            name: _write_value(value) for name, value in properties.headers.items()
        }
    if properties.further_headers:
        record["furtherHeaders"] = [
            [as_base64(name), _write_value(value)] for name, value in properties.further_headers
        ]
    if properties.opaque_headers:
        record["opaqueHeaders"] = as_base64(properties.opaque_headers)
    return record


def properties_from_json(record: dict[str, Any]) -> Properties:
    """Read properties from a JSON object.

    Raises ValueError, TypeError, KeyError or ArithmeticError if it is invalid.
    """
    plain = record["properties"]
    for name, value in plain.items():
        is_right = name in _PLAIN and (
            type(value) is int and 0 <= value < _NUMBERS[name]
            if name in _NUMBERS
            else type(value) is str and text_bytes(value) <= _NAME_BYTES
        )
        if not is_right:
            raise ValueError(f"expected a valid AMQP property, got {name}={value!r}")
    further = []
    for encoded, value in record.get("furtherHeaders", ()):
        name = b64decode(encoded, validate=True)
        if len(name) > _NAME_BYTES:
            raise ValueError(
                f"expected a header's name of at most {_NAME_BYTES} bytes, got {len(name)}"
            )
        further.append((name, _read_value(value)))
    return Properties(
        headers=_headers(record["headers"]) if "headers" in record else NO_HEADERS,
        further_headers=tuple(further),
        opaque_headers=b64decode(record.get("opaqueHeaders", ""), validate=True),
        **plain,
    )


def _headers(record: dict[str, Any]) -> Headers:
    found = {_name(name): _read_value(value) for name, value in record.items()}
    deep = [name for name, value in found.items() if _is_too_deep(value)]
    if deep:
        raise ValueError(f"expected values nested at most {MAX_DEPTH} deep, got {deep[0]!r}")
    return MappingProxyType(found)


def _is_too_deep(value: FieldValue) -> bool:
    return not isinstance(value, RawValue) and nests_deeper(value, MAX_DEPTH)


def _write_value(value: FieldValue) -> list[Any]:
    kind = type(value)
    if kind in _INTEGERS:
        return [_INTEGERS[kind], int(value)]  # type: ignore[arg-type]
    match value:
        case None:
            return ["V", None]
        case bool():
            return ["t", value]
        case float():
            return ["f" if isinstance(value, Float32) else "d", float.hex(value)]
        case Decimal():
            sign, digits, exponent = value.as_tuple()
            return ["D", [sign, "".join(map(str, digits)), -int(exponent)]]
        case str():
            return ["S", value]
        case RawValue():
            return ["raw", as_base64(value)]
        case bytes():
            return ["S64" if isinstance(value, LongStr) else "x", as_base64(value)]
        case Mapping():
            return ["F", {name: _write_value(inner) for name, inner in value.items()}]
        case int():
            return ["l", int(value)]
    return ["A", [_write_value(inner) for inner in value]]


def _read_value(pair: Any) -> FieldValue:
    code, value = pair
    if code not in _BY_CODE:
        raise ValueError(f"expected the code of an AMQP type, got {code!r}")
    return _BY_CODE[code](value)
