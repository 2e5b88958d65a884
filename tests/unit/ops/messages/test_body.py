"""Bodies as Kombu makes them and as an enemy would: unpacked and parsed within bounds."""

# mypy: disable-error-code="attr-defined, import-untyped, no-untyped-call"

from __future__ import annotations

import bz2
import json
import lzma
import pickle
import tracemalloc
import zlib
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
import yaml
import zstandard
from kombu import Connection, Producer

from hopback.message import Properties, Received
from hopback.ops.messages.body import parse_content, unpack_body
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.plain import plain_payload
from hopback.ops.messages.story import describe_failure

_CALL = [[17, "é"], {"currency": "EUR", "rate": 1.5}, {"chord": None}]
_ABOUT = {"lang": "py", "task": "shop.charge", "id": "5f1d", "argsrepr": "?", "kwargsrepr": "{}"}
_SENTENCE = 'It is the Celery task shop.charge(17, "é", currency="EUR", rate=1.5).'


def _made(body: object, **how: Any) -> tuple[Received, dict[str, Any]]:
    """The message that Kombu makes, and the form in which it would store it in Redis."""
    with Connection("memory://") as connection:
        producer = Producer(connection.channel(), routing_key="tasks")
        prepared, kind, encoding = producer._prepare(body, headers=(said := dict(_ABOUT)), **how)
        stored = producer.channel.prepare_message(
            prepared, content_type=kind, content_encoding=encoding, headers=said
        )
        stored["body"], used = producer.channel.encode_body(stored["body"], "base64")
        stored["properties"]["body_encoding"] = used
    content = prepared if isinstance(prepared, bytes) else prepared.encode()
    properties = Properties(content_type=kind, content_encoding=encoding, headers=said)
    return Received("tasks.dlq", "", "tasks.dlq", content, properties), stored


@pytest.mark.parametrize("serializer", ["json", "yaml"])
@pytest.mark.parametrize("compression", [None, "zlib", "bzip2", "lzma"])
def test_kombu_message_is_decoded(serializer: str, compression: str | None) -> None:
    """Task and arguments are read from the queue and from the form used by Redis and SQS."""
    delivery, stored = _made(_CALL, serializer=serializer, compression=compression)
    assert describe_failure(read_dead_letter(delivery, 1), delivery).endswith(_SENTENCE)
    moved = Received("tasks.dlq", "", "tasks.dlq", json.dumps(stored).encode(), Properties())
    dead_letter = read_dead_letter(moved, 1)
    assert (dead_letter.type, dead_letter.message_id) == ("shop.charge", "5f1d")
    assert describe_failure(dead_letter, moved).endswith(_SENTENCE)


def test_kombu_dates_and_decimals_are_shown_as_plain_values() -> None:
    call = [[datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.20"), b"\xff"], {}, {}]
    delivery, _ = _made(call, serializer="json")
    sentence = describe_failure(read_dead_letter(delivery, 1), delivery)
    assert sentence.endswith('shop.charge("2026-01-02T00:00:00+00:00", "1.20", "/w==").')


def _pack(body: bytes, compression: str, kind: str = "application/json") -> Received:
    headers = {**_ABOUT, "compression": compression}
    return Received("q", "", "q", body, Properties(content_type=kind, headers=headers))


def test_msgpack_and_zstd_bodies_are_decoded() -> None:
    """Bytes and dates within MessagePack are converted for JSON."""
    body = zstandard.compress(msgspec.msgpack.encode([[1, b"\xff"], {"a": None}, {}]))
    delivery = _pack(body, "application/zstd", "application/x-msgpack")
    assert describe_failure(read_dead_letter(delivery, 1), delivery).endswith(
        "(1, \"b'\\\\xff'\", a=null)."
    )
    assert plain_payload(delivery) == ([[1, "\\xff"], {"a": None}, {}], "msgpack")


@pytest.mark.parametrize(
    ("compression", "pack"),
    [
        ("application/x-gzip", zlib.compress),
        ("application/x-bz2", bz2.compress),
        ("application/x-lzma", lzma.compress),
        ("application/zstd", zstandard.compress),
    ],
)
def test_compression_bomb_is_decompressed_up_to_limit(compression: str, pack: Any) -> None:
    """64 KiB of 30 MB are decompressed. lzma has a window of 8 MiB."""
    delivery = _pack(pack(b"[" + b"0" * 30_000_000), compression)
    tracemalloc.start()
    assert parse_content(delivery) is None
    found = unpack_body(delivery, 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(found.data), found.is_whole) == (1000, False)
    assert peak < 10_000_000


@pytest.mark.parametrize(
    "name", ["application/x-bz2", "application/x-lzma", "gzip", "base64", "br"]
)
def test_body_that_fails_to_decompress_is_shown_unchanged(name: str) -> None:
    """The same holds for lzma data that needs gigabytes and for unknown methods."""
    for body in (b'{"a": 1}', b"", b"\x5d\x00\x00\x00\xff" + b"\xff" * 40):
        found = unpack_body(_pack(body, name), 100)
        assert (found.data, found.packed_by) in ((body, ""), (b"", name))


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system [echo]",
        "- !!python/tuple [1]",
        "a: &a [1]\nb: *a",
        "&a [*a]",
        "[" * 200 + "]" * 200,
        "- " * 30_000,
        "{a: 1",
        "a: b\n---\nc: d",
        "\x00",
    ],
)
def test_yaml_with_tags_aliases_or_depth_is_not_parsed(text: str) -> None:
    properties = Properties(content_type="application/x-yaml")
    assert parse_content(Received("q", "", "q", text.encode(), properties)) is None


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        [1, -2, 1.5, 1e30, True, False, None, "1", "true", "~", "", "a: b\nc"],
        {"a": [{"b": []}]},
    ],
)
def test_plain_yaml_is_parsed_like_pyyaml_safe_load(value: object) -> None:
    properties = Properties(content_type="application/x-yaml")
    body = yaml.safe_dump(value).encode()
    assert parse_content(Received("q", "", "q", body, properties)) == yaml.safe_load(body)


@pytest.mark.parametrize("body", [b"\xdd\xff\xff\xff\xff", b"\x91" * 60_000, b"\xc1"])
def test_invalid_msgpack_is_treated_as_binary(body: bytes) -> None:
    """Examples are lengths of gigabytes and depths of thousands."""
    delivery = _pack(body, "", "application/x-msgpack")
    assert parse_content(delivery) is None
    assert plain_payload(delivery) == (None, "binary")


def test_compressed_pickle_is_not_loaded() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return pytest.fail, ("a pickle was loaded",)

    body = zlib.compress(pickle.dumps(Bomb()))
    delivery = _pack(body, "application/x-gzip", "application/x-python-serialize")
    sentence = describe_failure(read_dead_letter(delivery, 1), delivery)
    assert "a pickle is not loaded" in sentence
    assert plain_payload(delivery) == (None, "binary")
