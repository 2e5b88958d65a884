"""Message content for eyes: bounded, inert, and with everything visible that tries to hide. Pure.

Content is hostile. It is only ever text here; what cannot be seen (control characters, escapes for
terminals, marks that turn the direction of writing) is written as a name, and what is compressed is
unpacked only as far as it is shown.
"""

from __future__ import annotations

import unicodedata
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.deadletters.plain import plain_text, pretty_json

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Form", "Payload", "payload_of", "visible"]

_SHOWN_BYTES = 128 * 1024
_PARSED_BYTES = 512 * 1024
_HEX_BYTES = 4096
_HEX_ROW = 16
_INVISIBLE = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_PACKED = {"gzip": 31, "x-gzip": 31, "deflate": 47, "zlib": 15}


class Form(StrEnum):
    """How a payload can be shown."""

    PRETTY = "pretty"
    RAW = "raw"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload made ready to be shown. `note` says what was done to it or left out."""

    form: Form
    text: str
    note: str
    size: int


def visible(text: str, *, lines: bool = False) -> str:
    """The text with everything invisible spelled out; `lines` keeps line ends and tabs."""
    kept = "\n\t" if lines else ""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each in kept or unicodedata.category(each) not in _INVISIBLE else _named(each)
        for each in plain_text(text)
    )


def _named(character: str) -> str:
    """A picture for ASCII controls, the code point for the rest."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def payload_of(body: bytes, form: Form, encoding: str | None = None) -> Payload:
    """The payload in that form; a binary one is shown in hex whatever was asked for."""
    if form is Form.HEX:
        return _hex(body, "")
    unpacked, note = _unpacked(body, encoding)
    try:
        text = _clipped(unpacked).decode("utf-8")
    except UnicodeDecodeError:
        return _hex(body, "not UTF-8 text, therefore in hex")
    notes = [note] if note else []
    if form is Form.PRETTY:
        pretty = _pretty(unpacked)
        if pretty is not None:
            text, cut = pretty
            notes += ["cut: the whole is behind Download"] if cut else []
            return Payload(Form.PRETTY, visible(text, lines=True), "; ".join(notes), len(body))
    if len(unpacked) > _SHOWN_BYTES:
        notes.append(f"the first {_SHOWN_BYTES // 1024} KiB; the whole is behind Download")
    return Payload(Form.RAW, visible(text, lines=True), "; ".join(notes), len(body))


def _clipped(data: bytes) -> bytes:
    """The beginning, cut where a character ends."""
    if len(data) <= _SHOWN_BYTES:
        return data
    cut = _SHOWN_BYTES
    while cut > _SHOWN_BYTES - 4 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return data[:cut]


def _unpacked(body: bytes, encoding: str | None) -> tuple[bytes, str]:
    """What is inside a compressed body, never more than is shown."""
    bits = _PACKED.get((encoding or "").strip().lower())
    if bits is None:
        return body, ""
    try:
        inside = zlib.decompressobj(bits).decompress(body, _PARSED_BYTES)
    except zlib.error:
        return body, f"says it is {encoding}, and is not"
    more = ", as far as it is shown" if len(inside) >= _PARSED_BYTES else ""
    return inside, f"unpacked from {encoding}{more}"


def _pretty(data: bytes) -> tuple[str, bool] | None:
    """JSON with indentation and whether it was cut; None if it is none, or too large for that."""
    return None if len(data) > _PARSED_BYTES else pretty_json(data, _SHOWN_BYTES)


def _hex(body: bytes, note: str) -> Payload:
    if len(body) > _HEX_BYTES:
        cut = f"the first {_HEX_BYTES // 1024} KiB; the whole is behind Download"
        note = f"{note}; {cut}" if note else cut
    return Payload(Form.HEX, "\n".join(_rows(body[:_HEX_BYTES])), note, len(body))


def _rows(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), _HEX_ROW):
        row = data[start : start + _HEX_ROW]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in row)
        yield f"{start:08x}  {row.hex(' '):<{_HEX_ROW * 3 - 1}}  {shown}"
