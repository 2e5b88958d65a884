"""Decompress and parse the body of a dead letter within limits. Pure and total.

The compression is given by Kombu's header `compression`, by the content encoding, or by the first bytes.
JSON, MessagePack and YAML are parsed. A pickle is never loaded, because loading it can run any code.
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
"""Largest decompressed body in bytes that is parsed to identify a message. Larger ones are not parsed."""

_WINDOW = 8 * 1024 * 1024
"""Largest zstd window in bytes that is decompressed: its specification requires it of every decoder."""
_LZMA_BYTES = 16 * 1024 * 1024
"""Bytes of memory for lzma. Kombu's bodies need 9 MiB. A body that needs more is not decompressed."""
_DEEPEST = 100  # levels of YAML. Arguments of tasks have a few. Deeper YAML is not parsed.
_YAML = frozenset({"application/x-yaml", "application/yaml", "text/yaml", "text/x-yaml"})
_MSGPACK = frozenset({"application/x-msgpack", "application/msgpack", "application/vnd.msgpack"})


class UnpackedBody(NamedTuple):
    """The beginning of a body, whether it is complete, and its compression, empty without one."""

    data: bytes
    is_whole: bool
    packed_by: str = ""


def unpack_body(delivery: Delivery, most: int) -> UnpackedBody:
    """Return at most `most` decompressed bytes of the body. A damaged body is returned as it is."""
    properties = delivery.properties
    how = find_packing(properties.content_encoding, properties.headers)
    return unpack(delivery.body, how, most)


def find_packing(encoding: object, headers: Any) -> str:
    """Return the compression by Kombu's header or by the content encoding. Empty if it is unknown."""
    for value in (headers.get("compression"), encoding):
        name = value.decode("latin-1") if isinstance(value, bytes) else value
        how = name.strip().lower() if isinstance(name, str) else ""
        if how in _UNPACK:
            return how
    return ""


def unpack(body: bytes, how: str, most: int) -> UnpackedBody:
    """Return at most `most` decompressed bytes. If `how` is empty, the first bytes show the compression."""
    if not how:
        how = next((name for start, name in _STARTS if body.startswith(start)), "")
    found = _UNPACK[how](body, most + 1) if how else None
    if found is None:
        return UnpackedBody(body[:most], len(body) <= most)
    return UnpackedBody(found[:most], len(found) <= most, how)


def _from_zlib(body: bytes, most: int) -> bytes | None:
    try:
        # 32 more than the window: zlib recognises gzip and zlib by the header.
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
        # Four characters are three bytes. The rest of a longer body is not decoded.
        return base64.b64decode(body[: (most + 2) // 3 * 4], validate=True)
    except (binascii.Error, ValueError):
        return None


_UNPACK: dict[str, Callable[[bytes, int], bytes | None]] = {
    # Names of Kombu first. Its gzip is zlib.
    "application/x-gzip": _from_zlib, "application/x-bz2": _from_bzip2,
    "application/x-lzma": _from_lzma, "application/zstd": _from_zstd,
    "gzip": _from_zlib, "x-gzip": _from_zlib, "deflate": _from_zlib, "zlib": _from_zlib,
    "bzip2": _from_bzip2, "bz2": _from_bzip2, "lzma": _from_lzma, "xz": _from_lzma,
    "zstd": _from_zstd, "base64": _from_base64,
}  # fmt: skip
_STARTS = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))


def is_msgpack(content_type: str | None) -> bool:
    """Return whether a content type is MessagePack."""
    return _essence(content_type) in _MSGPACK


def _essence(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def parse_content(delivery: Delivery, limit: int = BODY_BYTES) -> object:
    """Parse the body by its content type. Return None if it cannot be parsed or is larger than `limit`."""
    body, is_whole, _ = unpack_body(delivery, limit)
    return parse_as(delivery.properties.content_type, body) if is_whole else None


def parse_as(content_type: str | None, body: bytes, *, too_deep: object = None) -> object:
    """Return the parsed body, or None if it is invalid. The content type selects MessagePack or YAML. The
    default is JSON.

    `too_deep` is returned for JSON that is nested more deeply than Python can parse.
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
    """Return the value of plain YAML. Return None for tags and aliases, or if PyYAML is not installed.

    It is built from the parser's events, so no constructor runs and no alias is expanded.
    """
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        return None
    top: list[Any] = []
    open_ones = [top]  # until it ends, a mapping is a list of alternating keys and values
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
    """Return the null, boolean or number of a text. Other texts, dates and tagged values remain text."""
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
    """Return the message inside Kombu's envelope for Redis or SQS, or None if it is not such an envelope."""
    if not isinstance(parsed, dict) or not isinstance(parsed.get("properties"), dict):
        return None
    body, headers, kind = parsed.get("body"), parsed.get("headers"), parsed.get("content-type")
    if not (isinstance(body, str) and isinstance(headers, dict) and isinstance(kind, str)):
        return None
    content = body.encode("utf-8", "replace")
    if parsed["properties"].get("body_encoding") == "base64":
        content = unpack(content, "base64", BODY_BYTES).data
    return Received("", "", "", content, Properties(headers=headers, content_type=kind))
