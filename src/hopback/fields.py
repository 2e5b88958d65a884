"""The values of AMQP field tables. Python's own types are used where possible, and small subclasses
elsewhere.

When a header is received and published again, its value and its type must stay the same. Each AMQP
type therefore corresponds to exactly one Python type:

=====================  ====  =====================================================
Python                 AMQP  note
=====================  ====  =====================================================
bool                   t
Int8, UInt8            b B
Int16, UInt16          s u
Int32, UInt32          I i
int                    l     64 bits, signed; the only type written for plain integers
UInt64                 L
Float32, float         f d
Decimal                D     scale 0–255, 32 bits signed
str                    S     UTF-8
LongStr                S     a long string that is not UTF-8
bytes                  x
list, tuple            A
dict, Mapping          F     keys up to 255 bytes
Timestamp              T     seconds since 1970, 64 bits unsigned, never a datetime
None                   V
RawValue               any   copied unchanged: nested too deep, or a duplicate nested key
=====================  ====  =====================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias


class Int8(int):
    """Signed 8-bit integer."""

    __slots__ = ()


class UInt8(int):
    """Unsigned 8-bit integer."""

    __slots__ = ()


class Int16(int):
    """Signed 16-bit integer."""

    __slots__ = ()


class UInt16(int):
    """Unsigned 16-bit integer."""

    __slots__ = ()


class Int32(int):
    """Signed 32-bit integer."""

    __slots__ = ()


class UInt32(int):
    """Unsigned 32-bit integer."""

    __slots__ = ()


class UInt64(int):
    """Unsigned 64-bit integer."""

    __slots__ = ()


class Float32(float):
    """Single-precision float."""

    __slots__ = ()


class LongStr(bytes):
    """A long string that is not valid UTF-8."""

    __slots__ = ()


class RawValue(bytes):
    """The encoded form of a value that cannot be converted to a Python type.

    This is used for tables that exceed the nesting limit and for nested tables with duplicate keys.
    The bytes include the type octet and can be published again.

    Raises:
        ValueError: If the bytes are not exactly one encoded value.
    """

    __slots__ = ()

    def __new__(cls, raw: bytes) -> RawValue:
        if not _is_one_value(raw):
            raise ValueError(f"expected exactly one AMQP value, got {raw[:40]!r}")
        return super().__new__(cls, raw)

    def texts(self) -> list[str] | None:
        """Return the strings in this array, or None if the value is not an array of strings."""
        if self[0] != _ARRAY:
            return None
        found: list[str] = []
        position = 5
        while position < len(self):
            end = value_end(self, position, len(self)) or len(self)
            if self[position] == _TEXT:
                found.append(self[position + 5 : end].decode("utf-8", "surrogateescape"))
            position = end
        return found


class Timestamp(int):
    """Seconds since the epoch. The value can be outside the range of `datetime`."""

    __slots__ = ()

    def datetime(self) -> datetime | None:
        """Convert to a datetime in UTC. Returns None if the value is out of range."""
        try:
            return datetime.fromtimestamp(int(self), UTC)
        except (OverflowError, ValueError, OSError):
            return None


_PlainValue: TypeAlias = "bool | int | float | Decimal | str | bytes | None"
FieldValue: TypeAlias = "_PlainValue | Sequence[FieldValue] | Mapping[str, FieldValue]"
Headers: TypeAlias = "Mapping[str, FieldValue]"
FurtherHeaders: TypeAlias = "tuple[tuple[bytes, FieldValue], ...]"
"""Headers that cannot be stored in a `dict[str, ...]`, as pairs of the raw name and the value."""


class _ReadOnlyHeaders(dict[str, FieldValue]):
    """A dict that cannot be changed, because its encoded form is cached. Copies are normal dicts."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("expected a copy of the headers, because these are part of a message")

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __ior__ = _refuse
        clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[str, FieldValue]], tuple[dict[str, FieldValue]]]:
        return dict, (dict(self),)


class SharedHeaders(_ReadOnlyHeaders):
    """Headers that are shared by many messages. `encoded` caches the encoded form."""

    __slots__ = ("encoded",)

    encoded: bytes | None

    def __init__(self, headers: Headers) -> None:
        super().__init__(headers)
        self.encoded = None


class LayeredHeaders(_ReadOnlyHeaders):
    """The headers of a message combined with shared headers. Names must be unique."""

    __slots__ = ("own", "shared")

    own: Headers
    shared: SharedHeaders

    def __init__(self, own: Headers, shared: SharedHeaders) -> None:
        super().__init__(own, **shared)
        self.own = own
        self.shared = shared


_FIXED_BYTES: dict[type, int] = {
    bool: 1,
    Int8: 1,
    UInt8: 1,
    Int16: 2,
    UInt16: 2,
    Int32: 4,
    UInt32: 4,
    Float32: 4,
    Decimal: 5,
    int: 8,
    UInt64: 8,
    float: 8,
    Timestamp: 8,
    type(None): 0,
}


def table_size(table: Headers) -> int:
    """Return the encoded size of a table in bytes, including the length prefix."""
    total = 4
    for key, value in table.items():
        total += 1 + text_bytes(key)
        # Fast path for the most common types.
        kind = type(value)
        if kind is str:
            total += 5 + text_bytes(value)  # type: ignore[arg-type]
        elif kind is int:
            total += 9
        else:
            try:
                total += _value_size(value)
            except TypeError as error:
                raise TypeError(f"table key {key!r}: {error}") from None
    return total


def further_size(entries: FurtherHeaders) -> int:
    """Return the encoded size of the entries in bytes."""
    return sum(1 + len(name) + _value_size(value) for name, value in entries)


def text_bytes(text: str) -> int:
    """Return the encoded size of a string in bytes. Surrogate escapes count as one byte."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def as_text(value: object) -> str | None:
    """Decode a long string, using surrogate escapes for invalid UTF-8. Returns None for other
    types.
    """
    if isinstance(value, str):
        return value
    return value.decode("utf-8", "surrogateescape") if isinstance(value, LongStr) else None


def field_text(text: str) -> str | LongStr:
    """Encode a string returned by `as_text` back to a field value."""
    if text.isascii():
        return text
    raw = text.encode("utf-8", "surrogateescape")
    try:
        raw.decode()
    except UnicodeDecodeError:
        return LongStr(raw)
    return text


def _value_size(value: FieldValue) -> int:
    """Return the encoded size of a value in bytes, including the type octet."""
    fixed = _FIXED_BYTES.get(type(value))
    if fixed is not None:
        return 1 + fixed
    if isinstance(value, str):
        return 5 + text_bytes(value)
    if isinstance(value, bytes):
        return len(value) if isinstance(value, RawValue) else 5 + len(value)
    if isinstance(value, Mapping):
        return 1 + table_size(value)
    if isinstance(value, Sequence):
        return 5 + sum(map(_value_size, value))
    raise TypeError(f"expected an AMQP field value, got {type(value).__name__}")


MAX_DEPTH = 32
"""The maximum nesting depth of decoded tables and arrays. Deeper values are kept as `RawValue`."""


def nests_deeper(value: FieldValue, levels: int) -> bool:
    """Return True if the value contains more than `levels` levels of nested tables and arrays."""
    if isinstance(value, RawValue):
        return True
    if isinstance(value, Mapping):
        return levels == 0 or any(nests_deeper(inner, levels - 1) for inner in value.values())
    if isinstance(value, list | tuple):
        return levels == 0 or any(nests_deeper(inner, levels - 1) for inner in value)
    return False


_SIZES: dict[int, int] = {
    **dict.fromkeys(b"V", 0),
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"su", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"D", 5),
    **dict.fromkeys(b"lLdT", 8),
}
_SIZED = frozenset(b"SxAF")
_ARRAY, _TABLE, _TEXT = b"AFS"


def value_end(raw: bytes, position: int, limit: int) -> int | None:
    """Return the position where the encoded value at `position` ends.

    Returns None if the type is unknown or if the value extends past `limit`.
    """
    if position >= limit:
        return None
    kind = raw[position]
    if kind in _SIZED:
        start = position + 5
        end = start + int.from_bytes(raw[position + 1 : start], "big")
        return end if start <= end <= limit else None
    size = _SIZES.get(kind)
    if size is None or position + 1 + size > limit:
        return None
    return position + 1 + size


def _is_one_value(raw: bytes) -> bool:
    """Return True if the bytes are exactly one value. Nested values are checked without recursion."""
    limits = [len(raw)]
    """End positions of the open arrays and tables. The flags in `tables` mark the tables."""
    tables = [False]
    position = 0
    while True:
        if tables[-1]:
            position += 1 + raw[position]
        end = value_end(raw, position, limits[-1])
        if end is None:
            return False
        if raw[position] in (_ARRAY, _TABLE):
            limits.append(end)
            tables.append(raw[position] == _TABLE)
            position += 5
        else:
            position = end
        while len(limits) > 1 and position == limits[-1]:
            limits.pop()
            tables.pop()
        if len(limits) == 1:
            return position == limits[0]


_SCALARS: frozenset[type] = frozenset({str, int, bool, float, bytes, Timestamp, type(None)})
_NAMES = {kind: repr(kind.__name__) for kind in _SCALARS}


def canonical(value: FieldValue) -> object:
    """Return a comparable representation of the value that includes its type."""
    kind = type(value)
    # Fast path. `isinstance` with an abstract class is about ten times slower.
    if kind in _SCALARS:
        return kind.__name__, repr(value)
    if isinstance(value, Mapping):
        return "table", [(key, canonical(value[key])) for key in sorted(value)]
    if isinstance(value, list | tuple):
        return "array", [canonical(inner) for inner in value]
    return kind.__name__, repr(value)


def canonical_text(value: FieldValue) -> str:
    """Return the same as `repr(canonical(value))`, but about three times faster."""
    kind = type(value)
    if kind in _SCALARS:
        return f"({_NAMES[kind]}, {repr(value)!r})"
    if kind is dict:
        table: Any = value
        inside = ", ".join([f"({key!r}, {canonical_text(table[key])})" for key in sorted(table)])
        return f"('table', [{inside}])"
    if kind is list:
        array: Any = value
        return f"('array', [{', '.join([canonical_text(inner) for inner in array])}])"
    return repr(canonical(value))
