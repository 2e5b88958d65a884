"""Message properties as JSON for the outbox, equal in value and type when read back."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hopback import fields as amqp
from hopback.headers import without_unread
from hopback.message import Properties

if TYPE_CHECKING:
    from hopback.fields import FieldValue

__all__ = ["read_properties", "write_properties"]

_TAGGED: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        amqp.Int8, amqp.UInt8, amqp.Int16, amqp.UInt16, amqp.Int32, amqp.UInt32, amqp.UInt64,
        amqp.Float32, amqp.Timestamp,
    )
}  # fmt: skip

_BYTES: dict[str, type[bytes]] = {
    kind.__name__: kind for kind in (bytes, amqp.LongStr, amqp.RawValue)
}


def write_properties(properties: Properties) -> str:
    """The properties that are set, as JSON; what of headers nobody could read, as bytes of ours."""
    properties = without_unread(properties)
    found = {
        field.name: _plain(value)
        for field in fields(Properties)
        if (value := getattr(properties, field.name)) not in (None, (), b"")
    }
    return json.dumps(found, separators=(",", ":"))


def read_properties(text: str) -> Properties:
    """The properties that `write_properties` wrote."""
    found = {name: _typed(value) for name, value in json.loads(text).items()}
    if "further_headers" in found:
        found["further_headers"] = tuple(map(tuple, found["further_headers"]))
    return Properties(**found)


def _plain(value: FieldValue) -> Any:
    """A JSON value; what JSON has no type for becomes `{"$type": …}`."""
    kind = type(value)
    if kind.__name__ in _TAGGED:
        return {f"${kind.__name__}": float(value) if isinstance(value, float) else int(value)}  # type: ignore[arg-type]
    if isinstance(value, bytes):
        return {f"${kind.__name__}": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"$Decimal": str(value)}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    # A table is tagged too: a header may be called "$bytes".
    return {"$table": {key: _plain(inner) for key, inner in value.items()}}  # type: ignore[union-attr]


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = value.items()
    name = tag.removeprefix("$")
    if name == "table":
        return {key: _typed(one) for key, one in inner.items()}
    if name in _BYTES:
        return _BYTES[name](base64.b64decode(inner))
    return Decimal(inner) if name == "Decimal" else _TAGGED[name](inner)
