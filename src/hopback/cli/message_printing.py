"""One message as people read it: what happened, when, its headers with their types, its payload."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from hopback.cli.dlq_printing import size_text
from hopback.cli.printing import details, gap, safe_lines, table
from hopback.deadletters.plain import pretty_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.cli.documents import Document

__all__ = ["payload_text", "print_message"]

_SHOWN_BYTES = 64 * 1024
_HEX_BYTES = 2048
_HEX_ROW = 16
_SHOWN_VALUE = 100


def print_message(message: Document, body: bytes, view: str = "pretty") -> None:
    """Print it whole."""
    click.echo(safe_lines(message["sentence"]))
    click.echo()
    details(_facts(message))
    _section("What happened", [(one["at"] or "", one["what"]) for one in message["timeline"]])
    failure = message["failure"]
    if failure is not None and failure["stack"]:
        click.echo(f"\nStack\n{_indented(failure['stack'])}")
    _section("Properties", [(name, str(value)) for name, value in message["properties"].items()])
    if message["headers"]:
        gap()
        rows = [(one["name"], one["type"], _value(one["value"])) for one in message["headers"]]
        table(("header", "type", "value"), rows)
        if message.get("moreHeaders"):
            click.echo(f"and {message['moreHeaders']:,} more headers, which an export has")
    text, note = payload_text(body, view)
    click.echo(f"\nPayload ({size_text(len(body))}{note and f', {note}'})\n{_indented(text)}")


def _facts(message: Document) -> Iterator[tuple[str, str]]:
    letter = message["letter"]
    yield "id", letter["id"]
    yield "queue", letter["queue"]
    for name, key in (("type", "type"), ("from", "origin"), ("group", "fingerprint")):
        if letter[key]:
            yield name, letter[key]
    yield "came by", f"exchange {letter['exchange']!r} with key {letter['routingKey']!r}"
    yield "goes to", _way(message)


def _way(message: Document) -> str:
    way = message["way"]
    if way is None:
        return f"nowhere: {message['noWay']}"
    where = (
        f"exchange {way['exchange']} with key {way['routingKey']}"
        if way["exchange"]
        else f"queue {way['routingKey']}"
    )
    return where if way["flaw"] is None else f"{where}, but {way['flaw']}"


def _section(title: str, pairs: list[tuple[str, str]]) -> None:
    if pairs:
        click.echo(f"\n{title}")
        details([(f"  {name}", value) for name, value in pairs])


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in safe_lines(text).split("\n"))


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}…"


def payload_text(body: bytes, view: str) -> tuple[str, str]:
    """The payload for eyes, and what was done to it; what is no text is shown in hex."""
    if view == "hex":
        return _hex(body)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        shown, note = _hex(body)
        return shown, note or "not UTF-8"
    if view == "pretty" and len(body) <= _SHOWN_BYTES * 4:
        text, _ = pretty_json(text, _SHOWN_BYTES + 1) or (text, False)
    if len(text) > _SHOWN_BYTES:
        return text[:_SHOWN_BYTES], f"the first {size_text(_SHOWN_BYTES)}; --save FILE has it all"
    return text, ""


def _hex(body: bytes) -> tuple[str, str]:
    rows = [
        f"{start:06x}  {row.hex(' '):<{_HEX_ROW * 3 - 1}}  {_ascii(row)}"
        for start in range(0, min(len(body), _HEX_BYTES), _HEX_ROW)
        if (row := body[start : min(start + _HEX_ROW, _HEX_BYTES)])
    ]
    cut = len(body) > _HEX_BYTES
    return "\n".join(
        rows
    ), f"the first {size_text(_HEX_BYTES)}; --save FILE has it all" if cut else ""


def _ascii(row: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in row)
