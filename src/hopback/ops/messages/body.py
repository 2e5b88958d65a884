"""Decompress and parse the body of a dead letter with limits for size and depth.

The compression is determined by Kombu's header `compression`, the content encoding or the first
bytes. JSON, MessagePack and YAML are parsed. Pickles are never loaded, because they could run any
code.

The functions are pure and accept any input.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import json
import lzma
import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hopback.message import Delivery, Properties, Received

if TYPE_CHECKING:
    from collections.abc import Callable


BODY_BYTES = 64 * 1024
"""Bytes of a decompressed body that are parsed to identify a message. Larger bodies are not parsed."""

_WINDOW = 8 * 1024 * 1024
"""Bytes of a zstd window. Decoders have to support this size, and larger ones are not decompressed."""
_LZMA_BYTES = 16 * 1024 * 1024
"""Bytes of memory for lzma. Bodies created by Kombu need 9 MiB. If a body needs more, it is not
decompressed.
"""
# nested levels of YAML. Task arguments only have a few, and deeper ones are not parsed.
_DEEPEST = 100
_YAML = frozenset({"application/x-yaml", "application/yaml", "text/yaml", "text/x-yaml"})
_MSGPACK = frozenset({"application/x-msgpack", "application/msgpack", "application/vnd.msgpack"})


class UnpackedBody(NamedTuple):
    """The beginning of a body, whether it is complete, and the compression that was used, if any."""

    data: bytes
    is_whole: bool
    packed_by: str = ""


def unpack_body(delivery: Delivery, most: int) -> UnpackedBody:
    """Decompress up to `most` bytes of a body. A damaged body is returned unchanged."""
    properties = delivery.properties
    how = find_packing(properties.content_encoding, properties.headers)
    return unpack(delivery.body, how, most)


def find_packing(encoding: object, headers: Any) -> str:
    """Return the compression in Kombu's header or in the content encoding. It is empty if unknown."""
    for value in (headers.get("compression"), encoding):
        name = value.decode("latin-1") if isinstance(value, bytes) else value
        how = name.strip().lower() if isinstance(name, str) else ""
        if how in _UNPACK:
            return how
    return ""


def unpack(body: bytes, how: str, most: int) -> UnpackedBody:
    """Decompress up to `most` bytes. If `how` is empty, the first bytes determine the compression."""
    if not how:
        how = next((name for start, name in _STARTS if body.startswith(start)), "")
    found = _UNPACK[how](body, most + 1) if how else None
    if found is None:
        return UnpackedBody(body[:most], len(body) <= most)
    return UnpackedBody(found[:most], len(found) <= most, how)


def _from_zlib(body: bytes, most: int) -> bytes | None:
    try:
        # Adding 32 to the window size enables detection of gzip and zlib headers.
        return zlib.decompressobj(zlib.MAX_WBITS + 32).decompress(body, most)
    except zlib.error:
        return None


def _from_bzip2(body: bytes, most: int) -> bytes | None:
    try:
        return bz2.BZ2Decompressor().decompress(body, most)
    except (OSError, ValueError):
        return None


def _from_lzma(body: bytes, most: int) -> bytes | None:
    try:
        return lzma.LZMADecompressor(memlimit=_LZMA_BYTES).decompress(body, most)
    except (lzma.LZMAError, MemoryError, ValueError):
        return None


def _from_zstd(body: bytes, most: int) -> bytes | None:
    try:
        import zstandard
    except ImportError:
        return None
    try:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        return bytes(decompressor.stream_reader(body).read(most))
    except (zstandard.ZstdError, MemoryError):
        return None


def _from_base64(body: bytes, most: int) -> bytes | None:
    try:
        # Four characters encode three bytes. Only decode as many as needed.
        return base64.b64decode(body[: (most + 2) // 3 * 4], validate=True)
    except (binascii.Error, ValueError):
        return None


_UNPACK: dict[str, Callable[[bytes, int], bytes | None]] = {
    # Kombu's names come first. Its gzip is actually zlib.
    "application/x-gzip": _from_zlib, "application/x-bz2": _from_bzip2,
    "application/x-lzma": _from_lzma, "application/zstd": _from_zstd,
    "gzip": _from_zlib, "x-gzip": _from_zlib, "deflate": _from_zlib, "zlib": _from_zlib,
    "bzip2": _from_bzip2, "bz2": _from_bzip2, "lzma": _from_lzma, "xz": _from_lzma,
    "zstd": _from_zstd, "base64": _from_base64,
}  # fmt: skip
_STARTS = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))


def is_msgpack(content_type: str | None) -> bool:
    return _essence(content_type) in _MSGPACK


def _essence(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def parse_content(delivery: Delivery, limit: int = BODY_BYTES) -> object:
    """Parse a body by its content type. Returns None if it is invalid or larger than `limit`."""
    body, is_whole, _ = unpack_body(delivery, limit)
    return parse_as(delivery.properties.content_type, body) if is_whole else None


def parse_as(content_type: str | None, body: bytes, *, too_deep: object = None) -> object:
    """Parse a body as MessagePack or YAML, depending on the content type, or as JSON. Returns None
    if it is invalid.

    `too_deep` is returned for JSON with more nested levels than Python can parse.
    """
    if is_msgpack(content_type):
        try:
            return msgspec.msgpack.decode(body)
        except (msgspec.DecodeError, RecursionError, ValueError, TypeError):
            return None
    if _essence(content_type) in _YAML:
        return _from_yaml(body)
    return _parse_json(body, too_deep)


def _parse_json(body: bytes, too_deep: object) -> object:
    if body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        found: object = json.loads(body)
    except ValueError:
        return None
    except RecursionError:
        return too_deep
    return found


def _from_yaml(body: bytes) -> object:
    """Parse plain YAML. Returns None if it contains tags or aliases, or if PyYAML is not installed.

    This uses the events of the parser, so that no constructors are called and no aliases are
    expanded.
    """
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        return None
    top: list[Any] = []
    open_ones = [top]  # mappings are lists of alternating keys and values until they are complete
    try:
        for event in yaml.parse(body, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.ScalarEvent):
                open_ones[-1].append(_yaml_scalar(event))
            elif isinstance(event, yaml.CollectionStartEvent):
                if event.tag is not None or len(open_ones) > _DEEPEST:
                    return None
                open_ones.append([])
            elif isinstance(event, yaml.SequenceEndEvent):
                ended = open_ones.pop()
                open_ones[-1].append(ended)
            elif isinstance(event, yaml.MappingEndEvent):
                ended = open_ones.pop()
                open_ones[-1].append(dict(zip(map(str, ended[::2]), ended[1::2], strict=True)))
            elif isinstance(event, yaml.AliasEvent):
                return None
    except (yaml.YAMLError, ValueError):
        return None
    return top[0] if len(top) == 1 else None


_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}
_NUMBER = re.compile(r"[-+]?(\d{1,300}|\d{0,300}\.\d{1,300}([eE][-+]?\d{1,3})?)")


def _yaml_scalar(event: Any) -> object:
    """Convert a scalar to null, a boolean or a number. Other text, dates and tagged values stay text."""
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    found = _NUMBER.fullmatch(text)
    if found is None:
        return text
    return float(text) if "." in text else int(text)


def kombu_message(parsed: object) -> Received | None:
    """Return the message inside Kombu's envelope for Redis or SQS, or None if there is no envelope."""
    if not isinstance(parsed, dict) or not isinstance(parsed.get("properties"), dict):
        return None
    body, headers, kind = parsed.get("body"), parsed.get("headers"), parsed.get("content-type")
    if not (isinstance(body, str) and isinstance(headers, dict) and isinstance(kind, str)):
        return None
    content = body.encode("utf-8", "replace")
    if parsed["properties"].get("body_encoding") == "base64":
        content = unpack(content, "base64", BODY_BYTES).data
    return Received("", "", "", content, Properties(headers=headers, content_type=kind))
