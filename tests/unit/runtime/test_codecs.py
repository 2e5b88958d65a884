"""Codecs by content type and compressed bodies: supported forms, refusals and limits."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
import zstandard

from hopback import App, Context, compose
from hopback.errors import InvalidDeclaration
from hopback.message import Properties, Received
from hopback.runtime import Codecs, MsgpackCodec, ProtobufCodec
from hopback.runtime.codecs import MAX_DECOMPRESSED, decompress_body
from hopback.runtime.payload import Undecodable
from hopback.testing import AppTest, Tally, in_virtual_time

# Found when it runs: not every environment that checks types has it.
Duration: Any = import_module("google.protobuf.duration_pb2").Duration


@dataclass
class Order:
    """A payload of the standard library."""

    id: int
    data: list[str]


class Model(pydantic.BaseModel):
    """One of pydantic."""

    id: int


class Record(msgspec.Struct):
    """One of msgspec."""

    id: int


class Shouting:
    """A codec of one's own."""

    content_types = ("text/x-shout",)

    def encode(self, payload: object) -> bytes:
        return str(payload).upper().encode()

    def decoder(self, wanted: Any) -> Any:
        return lambda body: body.decode().lower()


CODECS = Codecs(MsgpackCodec(), ProtobufCodec(), Shouting())


def _read(wanted: Any, body: bytes, **said: Any) -> Any:
    def never(_body: bytes) -> Any:
        raise Undecodable("without content type")

    return CODECS.reader(wanted, never)(Received("q", "", "q", body, Properties(**said)))


@pytest.mark.parametrize(
    ("payload", "content_type"),
    [
        (Order(1, ["a"]), "application/msgpack"),
        (Model(id=1), "application/x-msgpack; v=1"),
        (Record(1), "Application/MsgPack"),
        (Order(1, ["a"]), "application/json"),
        (Duration(seconds=5), "application/x-protobuf"),
        ("quiet", "text/x-shout"),
    ],
)
def test_payload_round_trips_by_codec_of_content_type(payload: Any, content_type: str) -> None:
    """Case and parameters of the content type do not matter."""
    body = CODECS.encode(payload, content_type)
    assert body is not None
    wanted = Any if isinstance(payload, str) else type(payload)
    assert _read(wanted, body, content_type=content_type) == payload


@in_virtual_time
async def test_application_encodes_and_decodes_by_content_type() -> None:
    """The test kit, a handler and the application publish. Batches are decoded too."""
    app, seen = App("shop", codecs=CODECS), list[object]()

    @app.handler("orders", retry=None)
    async def handle(order: Order, context: Context) -> None:
        seen.append(order)
        packed = {"content_type": "application/msgpack"}
        await context.publish("rows", order, content_type="application/msgpack", compress="gzip")
        await app.publish("rows", {"id": 2, "data": []}, content_type=packed["content_type"])

    @app.batch("rows", size=2, retry=None)
    async def insert(rows: list[Order]) -> None:
        seen.append(rows)

    async with AppTest(app) as test:
        await test.publish("orders", Order(1, ["x"]), content_type="application/msgpack")
        assert await test.drain() == Tally(done=3)
        await test.publish("orders", b"\xc1", content_type="application/msgpack")
        await test.publish("orders", b"<id/>", content_type="application/xml")
        await test.publish("orders", b'{"id": 3, "data": []}', content_type="a/b+json")
        await test.publish("rows", b"{", content_type="application/json")
        await test.publish("rows", b'{"id": 4, "data": []}')
        await test.drain()
        test.assert_parked("orders", reason="no codec for content type 'application/xml'", times=1)
        test.assert_parked("orders", reason="undecodable payload", times=2)
        test.assert_parked("rows", reason="undecodable payload", times=1)
    assert seen[:2] == [Order(1, ["x"]), [Order(1, ["x"]), Order(2, [])]]


@in_virtual_time
async def test_protobuf_class_selects_its_codec() -> None:
    """`Annotated[T, codec]` selects one for any other type."""
    app, seen = App("shop"), list[object]()

    async def record_duration(duration: Any) -> None:
        seen.append(duration.seconds)

    record_duration.__annotations__["duration"] = Duration
    app.handler("durations", retry=None)(record_duration)

    @app.handler("shouts", retry=None)
    async def heard(text: Annotated[str, SHOUTING]) -> None:
        seen.append(text)

    async with AppTest(app) as test:
        await test.publish("durations", Duration(seconds=5))
        await test.publish("shouts", b"HELLO")
        assert await test.drain() == Tally(done=2)
        await test.publish("durations", b"\xff")
        assert await test.drain() == Tally(parked=1)
    assert sorted(map(str, seen)) == ["5", "hello"]


SHOUTING = Shouting()


@pytest.mark.parametrize("how", ["gzip", "deflate", "zstd"])
def test_compressed_body_is_decompressed_up_to_limit(how: Any) -> None:
    """This holds for handlers of bytes too."""
    message = compose("q", b"x" * 100_000, compress=how)
    assert len(message.body) < 1000
    encoding = message.properties.content_encoding
    assert encoding == how
    assert decompress_body(message.body, encoding) == b"x" * 100_000
    assert decompress_body(message.body, encoding, 100_000) == b"x" * 100_000
    with pytest.raises(Undecodable, match="larger than 99999 bytes"):
        decompress_body(message.body, encoding, 99_999)
    for broken in (message.body[:-9], b"garbage", message.body[: len(message.body) // 2]):
        with pytest.raises(Undecodable):
            decompress_body(broken, encoding, 99_999)


def test_compression_bomb_is_undecodable() -> None:
    """It grows a thousandfold or needs a window of gigabytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(128)) + packer.flush()
    with pytest.raises(Undecodable, match=f"larger than {MAX_DECOMPRESSED} bytes"):
        decompress_body(bomb, "gzip")
    wide = zstandard.ZstdCompressionParameters(window_log=27)
    packed = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    frame = packed.compress(b"x" * 100) + packed.flush()
    with pytest.raises(Undecodable, match="cannot be decompressed as zstd"):
        decompress_body(frame, "zstd")


@pytest.mark.parametrize(
    ("compress", "how"), [(gzip.compress, "gzip"), (zstandard.compress, "zstd")]
)
def test_all_members_of_compressed_body_are_read(compress: Any, how: str) -> None:
    """Tools that write in parts create one for each part. The limits apply to all of them."""
    assert decompress_body(compress(b"first,") + compress(b"second"), how) == b"first,second"
    assert decompress_body(compress(b"a") * 16, how, 16) == b"a" * 16
    with pytest.raises(Undecodable, match="more than 16 members"):
        decompress_body(compress(b"a") * 17, how)
    with pytest.raises(Undecodable, match="larger than 15 bytes"):
        decompress_body(compress(b"a") * 16, how, 15)
    with pytest.raises(Undecodable, match="ends in the middle"):
        decompress_body(compress(b"a") + compress(b"b")[:-1], how)
    with pytest.raises(Undecodable, match=f"cannot be decompressed as {how}"):
        decompress_body(compress(b"a") + b"rest of the body", how)


def test_encoding_that_is_not_a_compression_is_ignored() -> None:
    """Celery sets `utf-8` for text."""
    assert decompress_body(b"text", "utf-8") == decompress_body(b"text", None) == b"text"
    with pytest.raises(ValueError, match="gzip, deflate or zstd, got 'br'"):
        compose("q", {}, compress="br")  # type: ignore[arg-type]


def test_type_that_codec_cannot_decode_is_undecodable() -> None:
    """The message is parked. The other content types of the handler still work."""
    with pytest.raises(Undecodable, match="generated by protoc"):
        _read(Order, b"", content_type="application/protobuf")
    assert _read(Order, b'{"id":1,"data":[]}', content_type="application/json") == Order(1, [])
    with pytest.raises(TypeError, match="a message of protobuf, got Order"):
        CODECS.encode(Order(1, []), "application/protobuf")
    with pytest.raises(InvalidDeclaration, match="at least 1"):
        Codecs(max_bytes=0)
