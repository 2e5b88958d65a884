"""Hostile bytes: never an exception but ours, never a hang, never unbounded memory.

A few thousand inputs by default; HOPBACK_LONG=1 asks for a million each.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from hopback.errors import ProtocolError
from hopback.wire import Limits, MethodReceived, SettlementReceived, Side, Violation, WireConnection
from hopback.wire.events import Published
from hopback.wire.frames import PROTOCOL_HEADER, ConnectionState
from hopback.wire.handshake import ServerHandshake
from hopback.wire.properties import decode_properties
from hopback.wire.tables import decode_entries, decode_table, encode_entries, encode_further
from tests.properties.wire_capture import CAPTURE, listening_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.fields import FieldValue
    from hopback.wire import Event

_INPUTS = 1_000_000 if os.environ.get("HOPBACK_LONG") == "1" else 3_000
_SEED = int(os.environ.get("HOPBACK_SEED", "20240229"))
_INTERESTING = b"\x00\x01\x02\x03\x08\x7f\x80\xce\xfe\xffSFAx"


def _mutated(raw: bytes, chance: random.Random) -> bytes:
    """A few changes of the kinds that break parsers."""
    data = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(data):
                data[at] = chance.choice(_INTERESTING)
            case 2:
                data[at:at] = chance.randbytes(chance.randint(1, 8))
            case 3:
                del data[at : at + chance.randint(1, 16)]
            case 4:
                start = chance.randrange(len(data) + 1)
                data[at:at] = data[start : start + chance.randint(1, 64)]
            case _:
                size = chance.choice((1, 2, 4, 8))
                data[at : at + size] = chance.choice((b"\x00", b"\xff", b"\x7f")) * size
    return bytes(data)


def _frames(raw: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(raw):
        size = 8 + int.from_bytes(raw[at + 3 : at + 7], "big")
        found.append(raw[at : at + size])
        at += size
    return found


_FRAMES = _frames(CAPTURE)


def _pieces(raw: bytes, chance: random.Random) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        step = chance.choice((1, 7, 50, 4096, 100_000))
        yield raw[at : at + step]
        at += step


def _look_at(event: Event) -> None:
    """Everything lazy must hold when it is asked for."""
    repr(event)
    if not isinstance(event, MethodReceived | SettlementReceived | Violation) and event.channel:
        assert isinstance(event.exchange + event.routing_key, str)  # type: ignore[union-attr]
        assert event.properties is event.properties  # type: ignore[union-attr]


def _feed(connection: WireConnection, raw: bytes, chance: random.Random) -> bool:
    """Whether the bytes passed without a violation; after one, nothing more is told."""
    for piece in _pieces(raw, chance):
        events = connection.receive(piece)
        for event in events:
            _look_at(event)
        if any(isinstance(event, Violation) for event in events):
            assert isinstance(events[-1], Violation)
            assert connection.state is ConnectionState.CLOSED
            assert connection.receive(CAPTURE) == []
            return False
        assert len(connection._buffer) <= connection.limits.receive_max
    return True


def test_a_client_survives_mutated_captures() -> None:
    """A real session, changed in a few places and cut anywhere: events or one violation."""
    chance = random.Random(_SEED)
    survived = 0
    for _ in range(_INPUTS):
        start = chance.randrange(len(_FRAMES))
        raw = b"".join(_FRAMES[start : start + chance.randint(1, 12)])
        survived += _feed(listening_client(), _mutated(raw, chance), chance)
    assert 0 < survived < _INPUTS, "expected some inputs to pass and some to be refused"


def test_a_server_survives_mutated_clients() -> None:
    """The same code in the server's role, from the protocol header on."""
    chance = random.Random(_SEED + 1)
    opening = _opening()
    for _ in range(_INPUTS):
        server = WireConnection(Side.SERVER, Limits(receive_max=131_072))
        handshake = ServerHandshake(server, lambda mechanism, response: "guest")
        for piece in _pieces(_mutated(opening, chance), chance):
            received = piece
            while received or server.unread:
                for event in server.receive(received):
                    _look_at(event)
                    if server.state is not ConnectionState.CLOSED:
                        _serve(server, handshake, event)
                received = b""
            assert len(server._buffer) <= 131_072 + 8
            if server.state is ConnectionState.CLOSED:
                break
        server.take()


def _serve(server: WireConnection, handshake: ServerHandshake, event: Event) -> None:
    """The least that a server does; it may be asked what it must refuse."""
    try:
        handshake.on_event(event)
        if isinstance(event, MethodReceived) and event.name == "channel.open":
            server.send(event.channel, "channel.open-ok")
        if isinstance(event, Published):
            decode_properties(event.raw_properties)
    except ProtocolError:
        pass


def _opening() -> bytes:
    """What a client says from its header to its first publish."""
    client = WireConnection(Side.CLIENT)
    client.state = ConnectionState.AWAIT_START_OK
    said = client.take()
    assert said == PROTOCOL_HEADER
    client.send(0, "connection.start-ok", client_properties={"a": {"b": True}}, mechanism="PLAIN")
    client.state = ConnectionState.AWAIT_TUNE_OK
    client.send(0, "connection.tune-ok", channel_max=10, frame_max=8192, heartbeat=60)
    client.send(0, "connection.open", virtual_host="/")
    client.state = ConnectionState.OPEN
    client.send(1, "channel.open")
    rest = [
        b"\x01\x00\x01\x00\x00\x00\x05\x00\x55\x00\x0a\x00\xce",
        b"\x01\x00\x01\x00\x00\x00\x0b\x00\x3c\x00\x28\x00\x00\x01x\x01k\x01\xce",
        b"\x02\x00\x01\x00\x00\x00\x10\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x10\x00\x02\x00\xce",
        b"\x03\x00\x01\x00\x00\x00\x03abc\xce",
        b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50\x00\x00\x00\x00\x00\x00\x00\x01\x00\xce",
    ]
    return said + client.take() + b"".join(rest)


def _all_types() -> bytes:
    """The header table of a message in the capture: every type, and x-death."""
    client = listening_client()
    events = client.receive(CAPTURE)
    tables = [
        encode_entries(event.properties.headers) for event in events if hasattr(event, "properties")
    ]
    return max(tables, key=len)


def test_the_table_decoder_survives_mutations() -> None:
    """Never an exception from headers; what was read and what was not make the whole again."""
    chance = random.Random(_SEED + 2)
    sound = _all_types()
    opaque = 0
    for _ in range(_INPUTS):
        raw = _mutated(sound, chance)
        headers, further, rest = decode_entries(raw)
        again = decode_entries(encode_entries(headers) + encode_further(further) + rest)
        assert again.opaque == rest
        assert encode_further(again.further) == encode_further(further)
        assert encode_entries(again.headers) == encode_entries(headers)
        opaque += bool(rest)
    assert 0 < opaque < _INPUTS, "expected some tables to be read whole and some not"


def test_strict_decoders_raise_only_protocol_errors() -> None:
    """Method tables and properties are refused with our error, or read."""
    chance = random.Random(_SEED + 3)
    sound = _all_types()
    refused = 0
    for _ in range(_INPUTS):
        raw = _mutated(sound, chance)
        try:
            found: dict[str, FieldValue] = decode_table(len(raw).to_bytes(4, "big") + raw)[0]
            assert encode_entries(found)
            decode_properties(b"\x20\x00" + raw)
        except ProtocolError:
            refused += 1
    assert refused > 0
