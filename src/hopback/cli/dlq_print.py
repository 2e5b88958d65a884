"""Dead-letter queues, messages, groups, plans and jobs as people read them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import click

from hopback.cli.terminal import (
    details,
    document,
    gap,
    json_line,
    json_text,
    on_terminal,
    safe,
    safe_lines,
    table,
)
from hopback.deadletters.contract import HELD_BACK
from hopback.deadletters.plain import pretty_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hopback.cli.documents import Document

__all__ = [
    "ago",
    "count_of",
    "form_option",
    "payload_text",
    "print_groups",
    "print_job",
    "print_jobs",
    "print_letters",
    "print_message",
    "print_not_looked_into",
    "print_plan",
    "print_queue",
    "print_queues",
    "size_text",
    "tell",
]

_Command = TypeVar("_Command", bound="Callable[..., object]")


def form_option(command: _Command) -> _Command:
    """The option -o: a table on a terminal, lines of JSON anywhere else, or what is said."""
    return click.option(
        "-o",
        "--format",
        "form",
        type=click.Choice(("table", "json", "ndjson")),
        envvar="HOPBACK_FORMAT",
        default=lambda: "table" if on_terminal() else "ndjson",
        show_default="table on a terminal, else ndjson",
        help="What to print; also HOPBACK_FORMAT.",
    )(command)


def tell(form: str, found: object, in_words: Callable[[], None]) -> None:
    """Print documents in the form that is wanted: one document, or a list of them."""
    if form == "table":
        in_words()
    elif form == "json":
        document(json_text(found))
    else:
        for each in found if isinstance(found, list) else [found]:
            click.echo(json_line(each))


# --- numbers and times


def count_of(number: int, what: str = "message") -> str:
    """`1 message`, `1,200 messages`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def ago(moment: str | None, now: float) -> str:
    """How long ago a moment was: `12s ago`, `4m ago`, `2d ago`; empty if nobody knows."""
    if not moment:
        return ""
    then = datetime.fromisoformat(moment).astimezone(UTC).timestamp()
    seconds = max(int(now - then), 0)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def size_text(size: int) -> str:
    """A size as people say it: `512 B`, `1.5 KiB`."""
    shown, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if shown < 1024:
            break
        shown, unit = shown / 1024, larger
    return f"{size} B" if unit == "B" else f"{shown:.1f} {unit}"


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


# --- queues


def print_queues(queues: Sequence[Document]) -> None:
    """A row for each queue."""
    if not queues:
        click.echo("No dead-letter queues were found; --topology and --dlq name some.")
        return
    columns = ["queue", "from", "messages", "held", "job", "note"]
    rows = [
        (
            one["queue"],
            ", ".join(one.get("origins") or [one.get("mainQueue") or "?"]),
            _number(one["messages"]) if one.get("exists", True) else "-",
            _number(one["messagesUnacknowledged"]),
            _job_cell(one.get("activeJob")),
            _note(one),
        )
        for one in queues
    ]
    _filled(columns, rows, right=("messages", "held"))
    if any(one.get("heldBack") for one in queues):
        gap()
        click.echo(HELD_BACK)


def _filled(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> None:
    """A table without the columns in which nothing stands."""
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    table(
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        right=right,
    )


def _job_cell(job: Document | None) -> str:
    return "" if job is None else f"{job['kind']} {job['state']} {job['id']}"


def _note(one: Document) -> str:
    notes = []
    if not one.get("exists", True):
        notes.append("not on the broker")
    if one.get("consumers"):
        notes.append(f"{count_of(one['consumers'], 'consumer')} take from it")
    notes += [
        f"{held['messages']:,} held back in {held['queue']}" for held in one.get("heldBack") or ()
    ]
    if one.get("state") not in (None, "running", "idle"):
        notes.append(str(one["state"]))
    if one.get("knownBy") == "name":
        notes.append("by its name only")
    return "; ".join(notes)


def print_queue(queue: Document) -> None:
    """One queue with everything known."""
    depth = queue["depth"]
    numbers = (
        f"{_number(depth['messagesReady'])} ready, {_number(depth['messagesUnacknowledged'])} held"
    )
    source = f"by {depth['source']}, {depth['ageSeconds']:.0f} s old"
    pairs = [
        ("queue", queue["queue"]),
        ("from", ", ".join(queue["origins"]) or "unknown"),
        ("messages", f"{numbers} ({source})"),
        ("type", f"{queue['type'] or 'unknown'} on RabbitMQ {queue['brokerVersion']}"),
        ("limit", _limit(queue)),
        ("looking", queue["cost"]["text"]),
        ("known by", queue["knownBy"]),
    ]
    if queue["activeJob"]:
        pairs.append(("job", _job_cell(queue["activeJob"])))
    held_back = [f"{held['messages']:,} in {held['queue']}" for held in queue.get("heldBack") or ()]
    if held_back:
        pairs.append(("held back", ", ".join(held_back)))
    details(pairs)
    if held_back:
        click.echo(HELD_BACK)
    gap()
    rows = [
        (
            one["kind"] + (" (default)" if one["isDefault"] else ""),
            one["text"],
            one["flaw"] or one["warning"] or "",
        )
        for one in queue["targets"]
    ]
    _filled(("target", "where", "note"), rows)


def _limit(queue: Document) -> str:
    limit = "none" if queue["deliveryLimit"] is None else f"{queue['deliveryLimit']:,} deliveries"
    if queue["limitLifted"]:
        return f"{limit}, lifted by a policy of Hopback"
    return f"{limit}; --lift-limit can lift it" if queue["canLift"] else limit


# --- messages


def print_letters(letters: Sequence[Document], now: float) -> None:
    """A row for each message."""
    if not letters:
        click.echo("No messages.")
        return
    columns = ("id", "type", "reason", "error", "attempts", "failed", "size")
    rows = [
        (
            one["id"],
            one["type"],
            one["reason"],
            _clipped(_error(one)),
            f"{one['attempts']}" + (f" +{one['redrives']} re-driven" if one["redrives"] else ""),
            ago(one["lastFailedAt"], now),
            size_text(one["size"]),
        )
        for one in letters
    ]
    _filled(columns, rows, right=("size", "failed"))


def _error(letter: Document) -> str:
    return ": ".join(part for part in (letter["error"], letter["errorMessage"]) if part)


def _clipped(text: str, most: int = 60) -> str:
    first = " ".join(text.split())
    return first if len(first) <= most else f"{first[: most - 1]}…"


def print_groups(found: Document, now: float) -> None:
    """A row for each group, the largest first."""
    items = found["items"]
    if not items:
        click.echo("No messages.")
        print_not_looked_into(found)
        return
    by = found["by"]
    columns = ("count", by, "reason", "from", "error", "first", "last")
    rows = [
        (
            f"{one['count']:,}",
            _key(one),
            one["sample"]["reason"],
            one["sample"]["origin"] or "?",
            _clipped(_error(one["sample"])),
            ago(one["firstAt"], now),
            ago(one["lastAt"], now),
        )
        for one in items
    ]
    # What they are grouped by is shown once.
    kept = [
        place for place, name in enumerate(columns) if place == 1 or name not in (by, _TWIN.get(by))
    ]
    _filled(
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        right=("count", "first", "last"),
    )
    if found["matching"] != found["seen"] or not found["complete"]:
        more = "" if found["complete"] else "; the queue holds more"
        click.echo(f"{found['matching']:,} of {count_of(found['seen'])} match{more}.")
    print_not_looked_into(found)


def print_not_looked_into(found: Document) -> None:
    """How many messages the filter could not judge, if there are any."""
    if found["notLookedInto"]:
        click.echo(
            f"{count_of(found['notLookedInto'])} not looked into: the body is too large or too"
            " deeply nested for payload terms."
        )


_TWIN = {"origin": "from"}


# --- jobs


def print_plan(plan: Document, *, err: bool) -> None:
    """What would happen: how many, why they are here, where they go, what it costs."""
    details(_plan_lines(plan), err=err)
    for title, groups in (("reason", plan["reasons"]), ("error", plan["errors"])):
        rows = [(f"{one['count']:,}", _key(one)) for one in groups]
        if rows:
            gap(err=err)
            table(("count", title), rows, right=("count",), err=err)
    for text in plan["warnings"]:
        click.echo(safe(f"Warning: {text}"), err=err)
    for text in plan["flaws"]:
        click.echo(safe(f"In the way: {text}"), err=err)


def _key(group: Document) -> str:
    """What a group has in common; an error without a type goes by its words."""
    return group["key"] or _clipped(group["sample"]["errorMessage"]) or "(none)"


def _plan_lines(plan: Document) -> Iterator[tuple[str, str]]:
    yield plan["kind"], f"from {plan['queue']}"
    yield "messages", _selected(plan)
    if plan["kind"] == "discard":
        yield "export", plan["exportTo"] or "none: what is discarded is gone for good"
    else:
        yield "to", "\n".join(_ways(plan)) or plan["target"]
        yield "order", plan["order"]
    for one in plan["leftOut"]:
        yield "left out", f"{one['count']:,}: {one['reason']}"
    yield "looking", plan["cost"]["text"]


def _selected(plan: Document) -> str:
    """How many are meant, as far as the plan has seen them."""
    matching, seen, selected = plan["matching"], plan["seen"], plan["selected"]
    if seen < selected:
        part = (
            f", of the first {seen:,} of which {matching:,} match"
            if seen
            else ", none of them seen"
        )
        return f"{selected:,}{part}"
    return (
        f"{selected:,}" if matching == selected else f"{matching:,} of {selected:,}, by the filter"
    )


def _ways(plan: Document) -> Iterator[str]:
    for way in plan["ways"]:
        where = (
            f"exchange {way['exchange']} with key {way['routingKey']}"
            if way["exchange"]
            else f"queue {way['routingKey']}"
        )
        check = way["flaw"] or "exists and routes"
        yield f"{where}: {way['count']:,}, {check}"


def print_jobs(jobs: Sequence[Document], now: float) -> None:
    """A row for each job, the newest first."""
    if not jobs:
        click.echo("No jobs.")
        return
    columns = (
        "id",
        "kind",
        "queue",
        "state",
        "done",
        "left out",
        "failed",
        "came back",
        "by",
        "begun",
    )
    rows = [
        (
            one["id"],
            one["kind"],
            one["queue"],
            one["state"],
            f"{one['counts']['done']:,}/{one['counts']['selected']:,}",
            f"{one['counts']['skipped']:,}",
            f"{one['counts']['failed']:,}",
            f"{one['counts']['cameBack']:,}",
            one["by"],
            ago(one["createdAt"], now),
        )
        for one in jobs
    ]
    table(columns, rows, right=("done", "left out", "failed", "came back", "begun"))


def print_job(job: Document) -> None:
    """One job with everything known."""
    details(_job_lines(job))


def _job_lines(job: Document) -> Iterable[tuple[str, str]]:
    counts = job["counts"]
    yield "job", job["id"]
    yield "what", f"{job['kind']} from {job['queue']}" + _aim(job)
    yield "state", job["state"] + (f": {job['stateReason']}" if job["stateReason"] else "")
    yield (
        "messages",
        ", ".join(
            f"{counts[key]:,} {words}"
            for key, words in _COUNTS
            if counts[key] or key in ("selected", "done")
        ),
    )
    if job["filter"]:
        yield "filter", job["filter"]
    if job["rate"] is not None:
        yield "rate", f"{job['rate']:g} per second"
    if job["exportTo"]:
        yield "export", job["exportTo"]
    yield "by", job["by"] or "nobody in particular"
    if job["reason"]:
        yield "why", job["reason"]
    yield "begun", job["createdAt"]
    yield "changed", job["updatedAt"]


def _aim(job: Document) -> str:
    return f" to {job['target']}" if job["kind"] == "re-drive" else ""


_COUNTS = (
    ("selected", "selected"),
    ("done", "done"),
    ("skipped", "left out"),
    ("failed", "failed"),
    ("remaining", "remaining"),
    ("returned", "given back"),
    ("arrivedMeanwhile", "arrived meanwhile"),
    ("cameBack", "came back"),
)


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
