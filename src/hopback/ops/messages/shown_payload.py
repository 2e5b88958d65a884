"""Show a payload as readable text on the page and in commands."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hopback.ops.messages.body import unpack
from hopback.ops.messages.plain import hex_rows, pretty_json

_SHOWN_BYTES = 128 * 1024  # bytes of a payload to show, so that browsers stay responsive
_PARSED_BYTES = 512 * 1024
"""Bytes of a body that are parsed or decompressed, which takes a few milliseconds."""
_HEX_BYTES = 4096  # bytes, which are 256 rows


class Form(StrEnum):
    """The format in which a payload is shown."""

    PRETTY = "pretty"
    RAW = "raw"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class ShownPayload:
    """A payload as text. `note` describes how it was converted or truncated."""

    form: Form
    text: str
    note: str
    size: int


def show_payload(
    body: bytes, form: Form, packing: str, parsed: tuple[Any, str], rest: str
) -> ShownPayload:
    """Show a payload in a format. Binary payloads are always shown in hex.

    `packing` is the declared compression. `parsed` contains the parsed content and its encoding. It
    is used for bodies in MessagePack. `rest` describes how to get the whole payload if it is
    truncated.
    """
    if form is Form.HEX:
        return _show_hex(body, [], rest)
    inside, is_whole, packed_by = unpack(body, packing, _PARSED_BYTES)
    notes: list[str] = []
    if packed_by:
        notes.append(f"unpacked from {packed_by}{'' if is_whole else ', only the start'}")
    else:
        inside = body
        notes += [f"unchanged: declared as {packing}, but is not"] if packing else []
    payload, encoding = parsed
    if form is Form.PRETTY and encoding == "msgpack":
        inside = json.dumps(payload, ensure_ascii=False).encode()
        notes.append("as JSON, from MessagePack")
    cut_at = len(inside)
    if cut_at > _SHOWN_BYTES:  # do not split a character
        cut_at = _SHOWN_BYTES
        while cut_at > _SHOWN_BYTES - 4 and inside[cut_at] & 0xC0 == 0x80:
            cut_at -= 1
    try:
        text = inside[:cut_at].decode("utf-8")
    except UnicodeDecodeError:
        return _show_hex(body, ["in hex, because it is not UTF-8"], rest)
    # Parsing and displaying larger payloads takes too long.
    is_small = form is Form.PRETTY and len(inside) <= _PARSED_BYTES
    pretty = pretty_json(inside, _SHOWN_BYTES) if is_small else None
    if pretty is not None:
        text, is_cut = pretty
        notes += [f"cut, {rest}"] if is_cut else []
        return ShownPayload(Form.PRETTY, text, "; ".join(notes), len(body))
    if len(inside) > _SHOWN_BYTES:
        notes.append(f"the first {_SHOWN_BYTES // 1024} KiB, {rest}")
    return ShownPayload(Form.RAW, text, "; ".join(notes), len(body))


def _show_hex(body: bytes, notes: list[str], rest: str) -> ShownPayload:
    if len(body) > _HEX_BYTES:
        notes.append(f"the first {_HEX_BYTES // 1024} KiB, {rest}")
    return ShownPayload(Form.HEX, hex_rows(body[:_HEX_BYTES]), "; ".join(notes), len(body))
