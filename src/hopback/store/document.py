"""Message properties as JSON for the outbox, equal in value and type when read back."""

from __future__ import annotations

import json
from base64 import b64decode
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hopback import fields as amqp
from hopback.headers import without_unread
from hopback.headers.typed_json import properties_from_json, properties_to_json
from hopback.message import Properties

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["read_properties", "write_properties"]

# How an earlier version wrote a value that JSON has no type for: `{"$Int8": 1}`. Such rows may still wait.
_TAGGED: dict[str, Callable[[Any], Any]] = {
    "$table": lambda said: {name: _tagged(inner) for name, inner in said.items()},
    "$Decimal": Decimal,
    "$bytes": b64decode,
    "$LongStr": lambda said: amqp.LongStr(b64decode(said)),
    "$RawValue": lambda said: amqp.RawValue(b64decode(said)),
    **{
        f"${kind.__name__}": kind
        for kind in (
            amqp.Int8, amqp.UInt8, amqp.Int16, amqp.UInt16, amqp.Int32, amqp.UInt32, amqp.UInt64,
            amqp.Float32, amqp.Timestamp,
        )
    },
}  # fmt: skip


def write_properties(properties: Properties) -> str:
    """The properties that are set, as JSON; what of headers nobody could read, as bytes of ours."""
    return json.dumps(properties_to_json(without_unread(properties)), separators=(",", ":"))


def read_properties(text: str) -> Properties:
    """The properties that `write_properties` wrote, in this version or an earlier one."""
    record = json.loads(text)
    if "properties" in record:
        return properties_from_json(record)
    found = {name: _tagged(value) for name, value in record.items()}
    if "further_headers" in found:
        found["further_headers"] = tuple(map(tuple, found["further_headers"]))
    return Properties(**found)


def _tagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_tagged(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    ((tag, said),) = value.items()
    return _TAGGED[tag](said)
