"""The body of a dead letter: unpacked and parsed within bounds, as its producer packed it. Pure and total.

What is compressed is read by what its properties say, by Kombu's header `compression`, or by how it begins.
JSON, MessagePack and YAML are parsed. A pickle is never loaded: it can run anything.
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

from hopback.message import Properties, Received

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.message import Delivery

BODY_BYTES = 64 * 1024
"""The largest body that is read to find out what a message is."""

_WINDOW = 8 * 1024 * 1024
"""Bytes of a zstd window: the most that its specification asks every decoder to support."""
_LZMA_BYTES = 16 * 1024 * 1024
"""Memory for lzma: what Kombu makes asks for 9 MiB; a header may ask for 4 GiB."""
_DEEPEST = 100  # levels of YAML: arguments of tasks have a few
_YAML = frozenset({"application/x-yaml", "application/yaml", "text/yaml", "text/x-yaml"})
_MSGPACK = frozenset({"application/x-msgpack", "application/msgpack", "application/vnd.msgpack"})


class UnpackedBody(NamedTuple):
    """The beginning of a body, whether it is all of it, and what it was packed by; empty if it was not."""

    data: bytes
    is_whole: bool
    packed_by: str = ""


def unpacked(delivery: Delivery, most: int) -> UnpackedBody:
    """At most so many bytes of the body, after what packed it; what is damaged as it stands."""
    said = delivery.properties
    return unpack(delivery.body, packing(said.content_encoding, said.headers), most)


def packing(encoding: object, headers: Any) -> str:
    """What a message says it is packed by: Kombu's header, else its property; empty if by nothing known."""
    for said in (headers.get("compression"), encoding):
        name = said.decode("latin-1") if isinstance(said, bytes) else said
        how = name.strip().lower() if isinstance(name, str) else ""
        if how in _UNPACK:
            return how
    return ""


def unpack(body: bytes, how: str, most: int) -> UnpackedBody:
    """The body after `packing`, at most so many bytes; by how it begins where `how` is empty."""
    if not how:
        how = next((name for start, name in _STARTS if body.startswith(start)), "")
    found = _UNPACK[how](body, most + 1) if how else None
    if found is None:
        return UnpackedBody(body[:most], len(body) <= most)
    return UnpackedBody(found[:most], len(found) <= most, how)


def _inflated(body: bytes, most: int) -> bytes | None:
    try:
        # 32 more than the window: the header says whether it is gzip or zlib.
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
        opening = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        return bytes(opening.stream_reader(body).read(most))
    except (zstandard.ZstdError, MemoryError):
        return None


def _from_base64(body: bytes, most: int) -> bytes | None:
    try:
        # Four characters are three bytes; the rest of a longer one is not looked at.
        return base64.b64decode(body[: (most + 2) // 3 * 4], validate=True)
    except (binascii.Error, ValueError):
        return None


_UNPACK: dict[str, Callable[[bytes, int], bytes | None]] = {
    # Names of Kombu first: what it calls gzip is zlib.
    "application/x-gzip": _inflated, "application/x-bz2": _from_bzip2,
    "application/x-lzma": _from_lzma, "application/zstd": _from_zstd,
    "gzip": _inflated, "x-gzip": _inflated, "deflate": _inflated, "zlib": _inflated,
    "bzip2": _from_bzip2, "bz2": _from_bzip2, "lzma": _from_lzma, "xz": _from_lzma,
    "zstd": _from_zstd, "base64": _from_base64,
}  # fmt: skip
_STARTS = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))


def is_msgpack(content_type: str | None) -> bool:
    """Whether a content type says MessagePack."""
    return _essence(content_type) in _MSGPACK


def _essence(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def parsed_content(delivery: Delivery, limit: int = BODY_BYTES) -> object:
    """The body as its content type says, unpacked; None if it is too large to be read for this."""
    body, is_whole, _ = unpacked(delivery, limit)
    return parsed_as(delivery.properties.content_type, body) if is_whole else None


def parsed_as(content_type: str | None, body: bytes, *, too_deep: object = None) -> object:
    """JSON unless the content type says MessagePack or YAML; None if it is none of them.

    `too_deep` stands for JSON that is nested more deeply than Python reads.
    """
    if is_msgpack(content_type):
        try:
            return msgspec.msgpack.decode(body)
        except (msgspec.DecodeError, RecursionError, ValueError, TypeError):
            return None
    if _essence(content_type) in _YAML:
        return _from_yaml(body)
    return parsed_body(body, len(body), too_deep=too_deep)


def parsed_body(body: bytes, limit: int = BODY_BYTES, *, too_deep: object = None) -> object:
    """The body as JSON; None if it is none, or too large to be read for this.

    `too_deep` stands for one that is nested more deeply than Python reads.
    """
    if len(body) > limit or body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        found: object = json.loads(body)
    except ValueError:
        return None
    except RecursionError:
        return too_deep
    return found


def _from_yaml(body: bytes) -> object:
    """What plain YAML holds; None where PyYAML is missing, and for tags and aliases.

    It is built from the parser's events: no constructor is run, and nothing is expanded.
    """
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        return None
    top: list[Any] = []
    open_ones = [top]  # a mapping is a list of keys and values in turn until it ends
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
    """Null, a truth value, a number, else text: a date and what has a tag are shown as they are written."""
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
    """The message in the form that Kombu stores in Redis or SQS, from where somebody has moved it."""
    if not isinstance(parsed, dict) or not isinstance(parsed.get("properties"), dict):
        return None
    body, headers, kind = parsed.get("body"), parsed.get("headers"), parsed.get("content-type")
    if not (isinstance(body, str) and isinstance(headers, dict) and isinstance(kind, str)):
        return None
    content = body.encode("utf-8", "replace")
    if parsed["properties"].get("body_encoding") == "base64":
        content = unpack(content, "base64", BODY_BYTES).data
    return Received("", "", "", content, Properties(headers=headers, content_type=kind))
