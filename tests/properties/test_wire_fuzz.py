"""Invalid bytes raise only protocol errors, never hang and use bounded memory.

Each test uses 3,000 inputs. HOPBACK_LONG=1 sets one million.
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


def _mutate(raw: bytes, chance: random.Random) -> bytes:
    """Make a few changes that often break parsers."""
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


def _read_lazy_parts(event: Event) -> None:
    """Read every lazily decoded part of an event."""
    repr(event)
    if not isinstance(event, MethodReceived | SettlementReceived | Violation) and event.channel:
        assert isinstance(event.exchange + event.routing_key, str)  # type: ignore[union-attr]
        assert event.properties is event.properties  # type: ignore[union-attr]


def _feed(connection: WireConnection, raw: bytes, chance: random.Random) -> bool:
    """Return whether the bytes passed without a violation. After a violation no more events follow."""
    for piece in _pieces(raw, chance):
        events = connection.receive(piece)
        for event in events:
            _read_lazy_parts(event)
        if any(isinstance(event, Violation) for event in events):
            assert isinstance(events[-1], Violation)
            assert connection.state is ConnectionState.CLOSED
            assert connection.receive(CAPTURE) == []
            return False
        assert len(connection._buffer) <= connection.limits.receive_max
    return True


def test_client_survives_mutated_captures() -> None:
    """A recorded session with random changes and read boundaries gives events or one violation."""
    chance = random.Random(_SEED)
    survived = 0
    for _ in range(_INPUTS):
        start = chance.randrange(len(_FRAMES))
        raw = b"".join(_FRAMES[start : start + chance.randint(1, 12)])
        survived += _feed(listening_client(), _mutate(raw, chance), chance)
    assert 0 < survived < _INPUTS, "expected some inputs to pass and some to fail"


def test_server_survives_mutated_clients() -> None:
    """From the protocol header on."""
    chance = random.Random(_SEED + 1)
    opening = _client_opening()
    for _ in range(_INPUTS):
        server = WireConnection(Side.SERVER, Limits(receive_max=131_072))
        handshake = ServerHandshake(server, lambda mechanism, response: "guest")
        for piece in _pieces(_mutate(opening, chance), chance):
            rest_of_piece = piece
            while rest_of_piece or server.unread:
                for event in server.receive(rest_of_piece):
                    _read_lazy_parts(event)
                    if server.state is not ConnectionState.CLOSED:
                        _serve(server, handshake, event)
                rest_of_piece = b""
            assert len(server._buffer) <= 131_072 + 8
            if server.state is ConnectionState.CLOSED:
                break
        server.take()


def _serve(server: WireConnection, handshake: ServerHandshake, event: Event) -> None:
    """Answer as a minimal server. Events may be invalid for it."""
    try:
        handshake.on_event(event)
        if isinstance(event, MethodReceived) and event.name == "channel.open":
            server.send(event.channel, "channel.open-ok")
        if isinstance(event, Published):
            decode_properties(event.raw_properties)
    except ProtocolError:
        pass


def _client_opening() -> bytes:
    """Return the bytes of a client from its header to its first publish."""
    client = WireConnection(Side.CLIENT)
    client.state = ConnectionState.AWAIT_START_OK
    sent = client.take()
    assert sent == PROTOCOL_HEADER
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
    return sent + client.take() + b"".join(rest)


def _table_of_all_types() -> bytes:
    """Return the capture's header table with every type and x-death."""
    client = listening_client()
    events = client.receive(CAPTURE)
    tables = [
        encode_entries(event.properties.headers) for event in events if hasattr(event, "properties")
    ]
    return max(tables, key=len)


def test_table_decoder_survives_mutations() -> None:
    """Headers never raise. The read and unread parts together are the complete table."""
    chance = random.Random(_SEED + 2)
    sound = _table_of_all_types()
    opaque = 0
    for _ in range(_INPUTS):
        raw = _mutate(sound, chance)
        headers, further, rest = decode_entries(raw)
        again = decode_entries(encode_entries(headers) + encode_further(further) + rest)
        assert again.opaque == rest
        assert encode_further(again.further) == encode_further(further)
        assert encode_entries(again.headers) == encode_entries(headers)
        opaque += bool(rest)
    assert 0 < opaque < _INPUTS, "expected some tables to be read completely and some not"


def test_strict_decoders_raise_only_protocol_errors() -> None:
    chance = random.Random(_SEED + 3)
    sound = _table_of_all_types()
    failures = 0
    for _ in range(_INPUTS):
        raw = _mutate(sound, chance)
        try:
            found: dict[str, FieldValue] = decode_table(len(raw).to_bytes(4, "big") + raw)[0]
            assert encode_entries(found)
            decode_properties(b"\x20\x00" + raw)
        except ProtocolError:
            failures += 1
    assert failures > 0
