"""Dead letters of every kind: all properties and header types, empty, binary, large, doubled, odd."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hopback.fields import (
    Float32,
    Int8,
    Int16,
    Int32,
    LongStr,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
)
from hopback.message import Message, Properties

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.message import Delivery

__all__ = ["FOREIGN_USER", "NUMBER", "fingerprint_after", "fingerprint_before", "mixed_messages"]

NUMBER = "x-number"
FOREIGN_USER = "alice"
_MIB = 1024 * 1024
_DROPPED = {"x-death", "CC", "BCC"}

_EVERY_TYPE: dict[str, Any] = {
    "bool": True, "int8": Int8(-5), "uint8": UInt8(250), "int16": Int16(-300), "uint16": UInt16(65000),
    "int32": Int32(-70000), "uint32": UInt32(4_000_000_000), "int64": -(2**40), "double": 1.5,
    "float": Float32(0.25), "decimal": Decimal("3.14"), "text": "Grüße", "odd text": LongStr(b"\xff\xfe"),
    "bytes": b"\x00\x01", "time": Timestamp(1_700_000_000), "none": None, "list": [1, "two", [3.0]],
    "table": {"inner": {"deep": Int8(1)}, "empty": {}},
}  # fmt: skip


def mixed_messages(queue: str, count: int, large: int, seed: int = 0) -> Iterator[Message]:
    """Numbered dead letters for the queue, `large` of them of one to eight MiB."""
    chance = random.Random(seed)
    sizes = set(chance.sample(range(count), large))
    for number in range(count):
        body = _large(chance) if number in sizes else _body(chance, number)
        made = _properties(chance, number)
        yield Message("", queue, body, made)


def _large(chance: random.Random) -> bytes:
    return chance.randbytes(4096) * (chance.randint(1, 8) * _MIB // 4096)


def _body(chance: random.Random, number: int) -> bytes:
    match number % 5:
        case 0:
            return b""
        case 1:
            return chance.randbytes(chance.randint(1, 4096))
        case 2:
            return b"the same for many"
    return b'{"id": "%d", "type": "OrderPlaced"}' % number


def _properties(chance: random.Random, number: int) -> Properties:
    plain = Properties(
        message_id=f"m-{number % 1000}",
        delivery_mode=2,
        headers={NUMBER: number},
        priority=number % 5,
    )
    match number % 7:
        case 0:
            return replace(
                plain,
                headers={NUMBER: number, **_EVERY_TYPE},
                content_type="application/json",
                content_encoding="identity",
                correlation_id="c",
                reply_to="answers",
                timestamp=1_700_000_000,
                type="OrderPlaced",
                app_id="shop",
                cluster_id="old",
            )
        case 1:
            return replace(plain, user_id=FOREIGN_USER)
        case 2:
            return replace(
                plain, expiration="86400000", headers={NUMBER: number, "CC": ["nowhere"]}
            )
        case 3:
            return replace(plain, headers={NUMBER: number, "x-death": _odd_deaths(chance)})
        case 4:
            return replace(plain, message_id=None, delivery_mode=None)
    return plain


def _odd_deaths(chance: random.Random) -> Any:
    return chance.choice(["nonsense", [1, 2], [{"queue": 5}], [{"count": "x", "queue": "q"}], {}])


def fingerprint_before(message: Message) -> str:
    """The parts of a message that must be unchanged on arrival."""
    return _fingerprint(message.body, message.properties)


def fingerprint_after(delivery: Delivery) -> str:
    """The same parts of an arrived message without the headers that a re-drive adds."""
    return _fingerprint(delivery.body, delivery.properties)


def _fingerprint(body: bytes, properties: Properties) -> str:
    kept = (
        properties.content_type, properties.content_encoding, properties.priority,
        properties.correlation_id, properties.reply_to, properties.message_id, properties.timestamp,
        properties.type, properties.app_id, properties.cluster_id,
    )  # fmt: skip
    headers = sorted(
        (name, _with_type(value))
        for name, value in properties.headers.items()
        if name not in _DROPPED and not name.startswith(("hopback-", "x-delivery", "x-acquired"))
    )
    return hashlib.sha256(body + repr((kept, headers)).encode()).hexdigest()


def _with_type(value: Any) -> str:
    if isinstance(value, dict) or hasattr(value, "items"):
        return f"table {sorted((key, _with_type(inner)) for key, inner in value.items())}"
    if isinstance(value, list | tuple):
        return f"list {[_with_type(inner) for inner in value]}"
    return f"{type(value).__name__} {value!r}"
