"""Connection settings of other libraries as addresses of ours, and their headers as our values."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from hopback.fields import LongStr, Timestamp, UInt64

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.fields import FieldValue, Headers

__all__ = ["broker_url", "header_values"]

_MOST_SIGNED = 2**63 - 1  # the largest number that fits the usual type of 64 bits


def broker_url(
    host: str,
    port: int,
    *,
    user: str | None = None,
    password: str | None = None,
    virtual_host: str = "/",
    tls: bool = False,
    options: Mapping[str, object] | None = None,
) -> str:
    """The URL of these settings; what is None is not said, nor are options that are."""
    known = {name: value for name, value in (options or {}).items() if value is not None}
    query = f"?{urlencode(known)}" if known else ""
    secret = "" if password is None else f":{quote(password, safe='')}"
    login = "" if user is None else f"{quote(user, safe='')}{secret}@"
    place = f"[{host}]" if ":" in host else host
    scheme = "amqps" if tls else "amqp"
    return f"{scheme}://{login}{place}:{port}/{quote(virtual_host, safe='')}{query}"


def header_values(headers: Mapping[str, object] | None, *, text_type: type = bytes) -> Headers:
    """A header table as another client has decoded it.

    `text_type` is what its bytes are in its decoding: LongStr for clients that give texts which are
    not UTF-8 as bytes, and arrays of bytes as something else. What has no type in AMQP cannot have
    come from a broker, and is left out.
    """
    found = {name: _value(value, text_type) for name, value in (headers or {}).items()}
    return {name: value for name, value in found.items() if not isinstance(value, _Unknown)}


class _Unknown:
    """Stands for a value that no broker can have sent."""


def _value(value: object, text_type: type) -> FieldValue | _Unknown:
    match value:
        case None | bool() | float() | str() | Decimal():
            return value
        case int():
            # Of subclasses too: pika has one for numbers of 64 bits.
            return UInt64(value) if value > _MOST_SIGNED else int(value)
        case bytes():
            return LongStr(value) if text_type is LongStr else value
        case bytearray() | memoryview():
            return bytes(value)
        case datetime():
            return Timestamp(int(value.replace(tzinfo=value.tzinfo or UTC).timestamp()))
        case dict():
            return header_values(value, text_type=text_type)
        case list() | tuple():
            found = [_value(each, text_type) for each in value]
            return [each for each in found if not isinstance(each, _Unknown)]
    return _Unknown()
