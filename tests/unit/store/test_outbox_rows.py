"""Properties in the outbox: equal in value and type when read, also those that an earlier version wrote."""

from __future__ import annotations

from decimal import Decimal
from types import MappingProxyType

from hopback.fields import FieldValue, Float32, Int8, LongStr, RawValue, Timestamp, UInt64
from hopback.message import Properties
from hopback.store.transaction import read_properties, write_properties

_HEADERS: dict[str, FieldValue] = {
    "small": Int8(-3),
    "large": UInt64(2**63),
    "at": Timestamp(1_700_000_000),
    "half": Float32(0.5),
    "price": Decimal("12.50"),
    "raw": b"\x00\xff",
    "long": LongStr(b"\xfe"),
    "unread": RawValue(b"t\x01"),
    "list": [1, "two", None, True],
    "table": {"$bytes": "no known tag", "inner": Int8(1)},
}
_PROPERTIES = Properties(
    message_id="m-1",
    delivery_mode=2,
    headers=MappingProxyType(_HEADERS),
    further_headers=((b"\xff", Int8(7)),),
)


def _with_types(properties: Properties) -> list[tuple[str, type, str]]:
    return [(name, type(value), repr(value)) for name, value in properties.headers.items()]


def test_outbox_row_round_trips_with_header_types() -> None:
    found = read_properties(write_properties(_PROPERTIES))
    assert (found.message_id, found.delivery_mode) == ("m-1", 2)
    assert _with_types(found) == _with_types(_PROPERTIES)
