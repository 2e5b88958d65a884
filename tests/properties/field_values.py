"""Hypothesis strategies for field values, tables and properties."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from hopback.fields import (
    FieldValue,
    Float32,
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
from hopback.message import Properties

__all__ = ["field_values", "properties", "tables"]


def _integers(kind: Any, bits: int, *, signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high).map(kind)


def _is_not_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False


_DECIMALS = st.builds(
    lambda unscaled, scale: Decimal(
        (int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)
    ),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 255),
)
_SIMPLE: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.none(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.binary(min_size=1, max_size=8).filter(_is_not_text).map(LongStr),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(Float32),
    _DECIMALS,
    _integers(int, 64, signed=True),
    _integers(Int8, 8, signed=True),
    _integers(UInt8, 8, signed=False),
    _integers(Int16, 16, signed=True),
    _integers(UInt16, 16, signed=False),
    _integers(Int32, 32, signed=True),
    _integers(UInt32, 32, signed=False),
    _integers(UInt64, 64, signed=False),
    _integers(Timestamp, 64, signed=False),
)
_KEYS = st.text(max_size=12)

field_values: st.SearchStrategy[FieldValue] = st.recursive(
    _SIMPLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)
tables: st.SearchStrategy[dict[str, FieldValue]] = st.dictionaries(_KEYS, field_values, max_size=6)

_short = st.none() | st.text(max_size=60)
_octet = st.none() | st.integers(0, 255)
properties = st.builds(
    Properties,
    content_type=_short,
    content_encoding=_short,
    headers=tables,
    delivery_mode=_octet,
    priority=_octet,
    correlation_id=_short,
    reply_to=_short,
    expiration=_short,
    message_id=_short,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=_short,
    user_id=_short,
    app_id=_short,
    cluster_id=_short,
)
