"""Mutated input for all parsers. They must either accept it or raise a documented error.

Any other error is a finding, and so is a parser that takes longer than a second.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopback.designs import DESIGNS
from hopback.errors import BadFilter, BadLine, InvalidTopology, ProtocolError
from hopback.headers import failure_from_reason
from hopback.headers.rewrite import Mark, park_properties, retry_properties
from hopback.message import Properties, Received
from hopback.ops.messages.archive import read_line, write_line
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.filters import parse_filter
from hopback.policy import Occasion, decide, effects
from hopback.policy.outcome import Retry
from hopback.runtime.payload import Undecodable, decoder_for
from hopback.topology.definitions import read_definitions, write_definitions
from hopback.topology.document import read_toml, write_toml
from hopback.version import BrokerVersion
from hopback.wire import Violation
from hopback.wire.tables import decode_table, encode_table
from hopback.wire.url import parse_url
from tests.properties.wire_capture import CAPTURE, listening_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.fields import FieldValue

__all__ = ["READERS", "Reader", "fuzz", "fuzz_everything"]

_SLOW_S = 1.0
_MAGIC = (
    b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xf0\x9f\x92\xa9", b"\xed\xa0\x80", b"\r\n", b"\x1b[2J",
    b"../../etc/passwd", b"<script>", b"'\"", b"{" * 600, b"[" * 600, b"1e999", b"NaN", b"9" * 5000,
    b"\\u0000", b"\\ud800", b"null", b"true", b"-1", b"*" * 300, b"(" * 300, b"%00", b"$where", b"S",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reader:
    """A parser of external input, with valid samples and the errors that it may raise."""

    name: str
    samples: tuple[bytes, ...]
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]


@dataclass(frozen=True)
class _Order:
    id: int
    items: list[str]
    note: str | None = None


def fuzz(reader: Reader, inputs: int, seed: int) -> tuple[int, int]:
    """Return how many inputs were accepted and refused.

    Raises AssertionError with the input for any other result.
    """
    chance = random.Random(f"{seed} {reader.name}")
    accepted = refused = 0
    for _ in range(inputs):
        data = _mutate(chance.choice(reader.samples), chance)
        began = time.process_time()
        try:
            reader.read(data)
            accepted += 1
        except reader.refusals:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{reader.name} raised {error!r} for {data!r}") from error
        if time.process_time() - began > _SLOW_S:
            raise AssertionError(f"{reader.name} took over a second for {data[:200]!r}")
    return accepted, refused


def fuzz_everything(inputs: int, seed: int) -> list[tuple[str, str, str]]:
    """Test all parsers and return the rows of the page."""
    rows = []
    for reader in READERS:
        try:
            accepted, refused = fuzz(reader, inputs, seed)
        except AssertionError as finding:
            rows.append((f"bad input: {reader.name}", f"{inputs:,}", f"failed: {finding}"[:300]))
        else:
            much = f"{inputs:,} inputs: {refused:,} refused, {accepted:,} accepted"
            rows.append((f"bad input: {reader.name}", much, "only documented errors"))
    return rows


def _mutate(raw: bytes, chance: random.Random) -> bytes:
    """Return the data with a few changes that often break parsers."""
    data = bytearray(raw)
    for _ in range(chance.randint(1, 5)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0 if at < len(data):
                data[at] = chance.randrange(256)
            case 1:
                data[at:at] = chance.choice(_MAGIC)
            case 2:
                del data[at : at + chance.randint(1, 20)]
            case 3:
                start = chance.randrange(len(data) + 1)
                data[at:at] = data[start : start + chance.randint(1, 80)]
            case 4:
                word = chance.choice(_MAGIC)
                data[at : at + len(word)] = word
            case _:
                data[at:at] = chance.randbytes(chance.randint(1, 6))
    return bytes(data)


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "replace"))


def _frames(data: bytes) -> object:
    found = listening_client().receive(data)
    if any(isinstance(event, Violation) for event in found):
        raise ProtocolError("a violation, as it should be")
    return found


def _headers(data: bytes) -> object:
    """Pass headers from hostile bytes through all functions that read or write headers."""
    try:
        headers, _ = decode_table(data)
    except ProtocolError:
        headers = {"x-death": _hostile(data), "hopback-failure": data, "hopback-attempts": "x"}
    properties = Properties(headers=headers, message_id=data[:40].decode("latin1"))
    delivery = Received("q", "x", "k", data, properties)
    read_dead_letter(delivery, 1)
    mark = Mark("q", 1, failure=failure_from_reason("no"))
    park_properties(properties, mark)
    retry_properties(properties, mark)
    plan = _PLANS[len(data) % len(_PLANS)]
    for version in (BrokerVersion(3, 10), BrokerVersion(4, 0)):
        decision = decide(delivery, Retry("no"), plan, version=version)
        effects(decision, delivery, plan, Occasion(0.0))
    return None


def _hostile(data: bytes) -> list[FieldValue]:
    """Return a malformed `x-death` header that contains the data."""
    text = data.decode("utf-8", "replace")
    entry: dict[str, FieldValue] = {"queue": text[:20], "count": text, "reason": data, "time": text}
    return [entry, text, None, [1, 2], -1]


_TOPOLOGIES = [DESIGNS[name].build(hardened=True) for name in DESIGNS]
_PLANS = [plan for topology in _TOPOLOGIES for plan in topology.plans[:1]]
_DEATH: dict[str, Any] = {
    "x-death": [{"queue": "q", "reason": "rejected", "count": 2, "exchange": "", "time": 1}],
    "hopback-attempts": 2,
    "hopback-queue": "q",
    "hopback-failure": '{"type":"ValueError","message":"no"}',
    "CC": ["a"],
}
_DELIVERY = Received(
    "q.dlq", "x", "k", b'{"id": 1}', Properties(headers=_DEATH, message_id="7", content_type="a/b")
)
READERS = (
    Reader("frames of AMQP 0-9-1", (CAPTURE, CAPTURE[:200]), _frames, (ProtocolError,)),
    Reader("field tables", (encode_table(_DEATH),), decode_table, (ProtocolError,)),
    Reader(
        "headers, to the effects", (encode_table(_DEATH)[4:], encode_table(_DEATH)), _headers, ()
    ),
    Reader(
        "filters",
        (b"origin:orders* reason:timeout attempts>=3 age<2h payload.id:7", b'type:"a b" key:x'),
        _text(parse_filter),
        (BadFilter,),
    ),
    Reader(
        "TOML topologies",
        tuple(write_toml(topology).encode() for topology in _TOPOLOGIES),
        _text(read_toml),
        (InvalidTopology,),
    ),
    Reader(
        "definitions",
        tuple(json.dumps(write_definitions(topology)[0]).encode() for topology in _TOPOLOGIES),
        read_definitions,
        (InvalidTopology,),
    ),
    Reader(
        "JSON payloads",
        (b'{"id": 1, "items": ["a", "b"], "note": null}', b'{"id": 1, "items": []}'),
        decoder_for(_Order),
        (Undecodable,),
    ),
    Reader("lines of an import", (write_line(_DELIVERY),), read_line, (BadLine,)),
    Reader(
        "broker addresses",
        (b"amqps://user:secret@host:5671/vhost?heartbeat=30", b"amqp://h1,h2:5673/%2F"),
        _text(parse_url),
        (ValueError,),
    ),
)
"""All parsers of external input. HTTP is tested by `tests.faults.http`."""
