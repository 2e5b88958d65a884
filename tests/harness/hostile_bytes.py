"""Create messages with random properties that a broker accepts, and find the part of them that no
hop may change.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hopback.headers.names import DELAY, OURS, is_broker_count, is_death, is_routing
from hopback.wire.properties import decode_properties, encode_properties
from hopback.wire.tables import encode_entries, encode_further

if TYPE_CHECKING:
    import random

    from hopback.message import Properties

__all__ = ["hostile_properties", "hostile_text", "own_part", "raw_properties"]

_SPECIMENS = (
    b"", b"\x00", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"a\xffb", "ü".encode(), b"\xf0\x9f",
    b"plain", b"\xe2\x80\xae", b"\x1b[31m", b"<script>", b"'; --", b"\r\n", b"\xef\xbb\xbf",
    b"\x7f", "\U0001f600".encode(),
)  # fmt: skip
_NAMES = (
    *(name.encode() for name in sorted(OURS)),
    b"hopback-delay", b"hopback-future", b"x-delivery-count", b"x-retries", b"x-original-routing-key",
    b"traceparent", b"exception", b"task", b"id",
)  # fmt: skip


def hostile_text(chance: random.Random, most: int = 255) -> bytes:
    """Return bytes for a name or a text. About half of them are valid UTF-8."""
    if chance.random() < 0.7:
        return chance.choice(_SPECIMENS)[:most]
    return chance.randbytes(chance.choice((1, 3, 9, 64, most)))[:most]


def _with_length(octet: bytes, raw: bytes) -> bytes:
    return octet + len(raw).to_bytes(4, "big") + raw


def _entry(chance: random.Random, depth: int) -> bytes:
    known = chance.random() < 0.3
    name = chance.choice(_NAMES) if known else hostile_text(chance, 100)
    return bytes((len(name),)) + name + _value(chance, depth)


def _value(chance: random.Random, depth: int) -> bytes:
    match chance.randrange(9 if depth < 3 else 6):
        case 0 | 1 | 2:
            return _with_length(b"S", hostile_text(chance, 2000))
        case 3:
            return _with_length(b"x", chance.randbytes(chance.randrange(40)))
        case 4:
            kinds = (b"t\x01", b"V", b"b\xff", b"l" + b"\xff" * 8, b"D\xff\x80\x00\x00\x00")
            return chance.choice(kinds)
        case 5:  # only finite numbers, because RabbitMQ closes the connection for others
            return chance.choice(
                (b"d\x7f\xef" + b"\xff" * 6, b"T" + b"\xff" * 8, b"f\x7f\x7f\xff\xff")
            )
        case 6:
            return _with_length(
                b"A", b"".join(_value(chance, depth + 1) for _ in range(chance.randrange(4)))
            )
        case 7:
            return _with_length(
                b"F", b"".join(_entry(chance, depth + 1) for _ in range(chance.randrange(4)))
            )
    raw = b"V"
    for _ in range(chance.choice((29, 31, 33, 200))):
        raw = _with_length(b"F", b"\x01k" + raw)
    return raw


def raw_properties(chance: random.Random) -> bytes:
    """Return the flags and values of a content header. Expiration and user id are omitted, because
    the broker checks them.
    """
    flags, parts = 0, []
    for bit in range(15, 1, -1):
        if bit in (8, 4) or chance.random() < 0.4:
            continue
        flags |= 1 << bit
        if bit == 13:
            entries = b"".join(_entry(chance, 0) for _ in range(chance.choice((0, 1, 3, 8))))
            parts.append(len(entries).to_bytes(4, "big") + entries)
        elif bit in (12, 11):
            parts.append(bytes((chance.choice((1, 2)) if bit == 12 else chance.randrange(256),)))
        elif bit == 6:
            parts.append(chance.choice((bytes(8), b"\xff" * 8, chance.randbytes(8))))
        else:
            text = hostile_text(chance)
            parts.append(bytes((len(text),)) + text)
    return flags.to_bytes(2, "big") + b"".join(parts)


def hostile_properties(chance: random.Random) -> Properties:
    """Return random properties as a client decodes them."""
    return decode_properties(raw_properties(chance))


def own_part(properties: Properties) -> tuple[bytes, Counter[bytes]]:
    """Return the encoded properties of the producer, and the encoded headers that neither Hopback
    nor the broker has added.
    """
    headers = Counter(
        encode_entries({name: value})
        for name, value in properties.headers.items()
        if not (
            name in OURS
            or name == DELAY
            or is_death(name)
            or is_broker_count(name)
            or is_routing(name)
        )
    )
    for name, value in properties.further_headers:
        if not name.startswith(b"hopback-") and name != b"x-delivery-count":
            headers[encode_further(((name, value),))] += 1
    plain = properties.with_changes(
        headers={},
        further_headers=(),
        opaque_headers=b"",
        delivery_mode=2,
        expiration=None,
        user_id=None,
    )
    return encode_properties(plain), headers
