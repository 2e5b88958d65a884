"""Print dead-letter queues, messages, groups, plans and jobs as tables or JSON."""

from __future__ import annotations

import json
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from hopback.cli.terminal import (
    clock_text,
    details,
    document,
    gap,
    json_line,
    json_text,
    on_terminal,
    table,
)
from hopback.headers import timestamp
from hopback.ops.contract.requests import GroupBy, JobKind, TargetKind
from hopback.ops.contract.values import (
    HELD_BACK,
    Counts,
    DeadLetter,
    Group,
    HeldMessages,
    Job,
    JobPlan,
    LookProgress,
    MessageView,
    OnProgress,
    QueueDetail,
    QueueSummary,
    ReachedQueue,
    Survey,
    TargetChoice,
)
from hopback.ops.messages.body import find_packing
from hopback.ops.messages.shown_payload import Form, show_payload
from hopback.text import count_of, safe_lines, size_text, span_text
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence

    from hopback.ops.contract.search import SearchProgress

_Command = TypeVar("_Command", bound="Callable[..., object]")

_ERROR_CELL = 60
"""Characters of an error in a table. Most errors can be distinguished, and other columns still fit."""
_HEADER_CELL = 100  # characters of a header value. An export contains the whole value.


def form_option(command: _Command) -> _Command:
    """Add the option -o. The default is a table on a terminal, and lines of JSON otherwise."""
    return click.option(
        "-o",
        "--format",
        "form",
        type=click.Choice(("table", "json", "ndjson")),
        envvar="HOPBACK_FORMAT",
        default=lambda: "table" if on_terminal() else "ndjson",
        show_default="table on a terminal, else ndjson",
        help="Output format. Also HOPBACK_FORMAT.",
    )(command)


def output(form: str, found: object, in_words: Callable[[], None]) -> None:
    """Print values of the contract. `in_words` prints them as a table."""
    from hopback.ops.contract.codec import to_json

    if form == "table":
        in_words()
    elif form == "json":
        document(json_text(to_json(found)))
    else:
        for each in found if isinstance(found, list | tuple) else (found,):
            click.echo(json_line(to_json(each)))


def ago(moment: float | None, now: float) -> str:
    """Format the age of an event. The result is empty if the time is unknown."""
    return "" if moment is None else f"{span_text(int(now - moment))} ago"


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _clip(text: str) -> str:
    """Return a text in one line, truncated to the width of a table cell."""
    line = " ".join(text.split())
    return line if len(line) <= _ERROR_CELL else f"{line[: _ERROR_CELL - 1]}…"


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> None:
    """Print a table and omit empty columns."""
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    table(
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        right=right,
        keep=keep,
    )


def print_queues(queues: Sequence[QueueSummary]) -> None:
    """Print the queues with the most messages first, followed by the totals and the age of the data."""
    if not queues:
        click.echo("No dead-letter queues found. --topology MODULE:APP and --dlq QUEUE add some.")
        return
    queues = sorted(queues, key=lambda one: (-(one.messages or 0), one.queue))
    rows = [
        (
            one.queue,
            ", ".join(one.origins or (one.main_queue or "?",)),
            _number(one.messages) if one.exists else "-",
            _number(one.messages_unacknowledged) if one.messages_unacknowledged else "",
            _job_cell(one.active_job),
            "; ".join(_notes(one)),
        )
        for one in queues
    ]
    columns = ("queue", "from", "messages", "held", "job", "note")
    print_table(columns, rows, right=("messages", "held"), keep=("job",))
    total = sum(one.messages or 0 for one in queues)
    full = sum(bool(one.messages) for one in queues)
    age = max((one.depth.age_s for one in queues), default=0.0)
    old = f" (up to {age:.0f} s old)" if age >= 1 else ""
    click.echo(f"{count_of(total)} in {full} of {count_of(len(queues), 'queue')}{old}.")
    if any(one.held_back for one in queues):
        gap()
        click.echo(HELD_BACK)


def _job_cell(job: Job | None) -> str:
    return "" if job is None else f"{job.kind} {job.state} {job.id}"


def _notes(one: QueueSummary) -> Iterator[str]:
    if not one.exists:
        yield "not on the broker"
    if one.consumers and one.active_job is None:  # a job also has a consumer
        yield count_of(one.consumers, "consumer")
    for held in one.held_back:
        yield f"{held.messages:,} held back in {held.queue}"
    if one.state not in (None, "running", "idle"):  # names for normal states in RabbitMQ
        yield str(one.state)
    if one.known_by == "name":
        yield "found by name only"


def print_queue(queue: QueueDetail) -> None:
    depth = queue.depth
    numbers = f"{_number(depth.ready)} ready, {_number(depth.unacked)} held"
    limit = "none" if queue.limit is None else f"{queue.limit:,} deliveries"
    if queue.limit_lifted:
        limit += ", lifted by a policy of Hopback"
    elif queue.can_lift:
        limit += " (--lift-limit lifts it)"
    pairs = [
        ("queue", queue.queue),
        ("from", ", ".join(queue.origins) or "unknown"),
        ("messages", f"{numbers} (by {depth.source}, {depth.age_s:.0f} s old)"),
        ("type", f"{queue.type or 'unknown'} on RabbitMQ {queue.broker_version}"),
        ("limit", limit),
        ("browsing", queue.cost.text),
        ("known by", queue.known_by),
    ]
    if queue.active_job is not None:
        pairs.append(("job", _job_cell(queue.active_job)))
    if queue.held_back:
        held_back = ", ".join(f"{held.messages:,} in {held.queue}" for held in queue.held_back)
        pairs.append(("held back", held_back))
    details(pairs)
    if queue.held_back:
        click.echo(HELD_BACK)
    gap()
    rows = [
        (
            f"{_target_name(queue, one)}{' (default)' if one.is_default else ''}",
            one.text
            if one.exchange is None or one.routing_key is None
            else place_text(one.exchange, one.routing_key),
            one.flaw or one.warning,
        )
        for one in queue.targets
    ]
    print_table(("target", "where", "note"), rows)


def _target_name(queue: QueueDetail, choice: TargetChoice) -> str:
    """Return the value for `--to`. If there is no plan, the design's target is the queue that failed."""
    if choice.kind is TargetKind.DESIGN and queue.known_by != "plan":
        return TargetKind.FAILED_QUEUE.value
    return choice.kind.value


def print_messages(messages: Sequence[DeadLetter], now: float) -> None:
    if not messages:
        click.echo("No messages.")
        return
    rows = [
        (
            one.id,
            one.type,
            one.reason,
            _clip(_error(one)),
            ("≥ " if one.attempts_at_least else "")
            + f"{one.attempts:,}"
            + (f" +{one.redrives} re-driven" if one.redrives else ""),
            ago(one.last_failed, now),
            size_text(one.size),
        )
        for one in messages
    ]
    columns = ("id", "type", "reason", "error", "attempts", "failed", "size")
    print_table(columns, rows, right=("size", "failed"))


def _error(message: DeadLetter) -> str:
    return ": ".join(part for part in (message.error, message.error_message) if part)


@contextmanager
def show_progress() -> Iterator[OnProgress | None]:
    """Yield a function that shows the progress in a line of the terminal. The line is cleared at
    the end.
    """
    if not on_terminal():
        yield None
        return

    def tell(progress: LookProgress) -> None:
        share = f"{progress.seen:,} of {count_of(progress.total)} read"
        click.echo(f"\x1b[2K{safe(share)}, now in {safe(progress.queue)}\r", nl=False, err=True)

    try:
        yield tell
    finally:
        click.echo("\x1b[2K", nl=False, err=True)


async def show_search(
    progress: AsyncGenerator[SearchProgress, None],
) -> AsyncGenerator[SearchProgress, None]:
    """Yield the progress of a search and show it in a line of the terminal."""
    async with aclosing(progress):
        async for found in progress:
            if on_terminal() and not found.is_over:
                share = f"{found.seen:,} of {count_of(found.total)}"
                line = f"{share} read, {found.matching:,} match, now in {found.queue}"
                click.echo(f"\x1b[2K{safe(line)}\r", nl=False, err=True)
            elif on_terminal():
                click.echo("\x1b[2K", nl=False, err=True)
            yield found


def print_held(held: Iterable[HeldMessages], *, err: bool = False) -> None:
    """Print which messages were not read because other consumers hold them."""
    for one in held:
        number = "messages, number unknown" if one.count is None else count_of(one.count)
        holders = clock_text(", ".join(one.holders)) or "another consumer"
        click.echo(safe(f"Not read: {number} in {one.queue}, held by {holders}."), err=err)


def print_groups(found: Survey, now: float) -> None:
    """Print the groups, largest first."""
    print_held(found.held)
    if not found.groups:
        click.echo("No messages.")
        print_not_looked_into(found.not_looked_into)
        return
    columns = ["count", found.by, "reason", "from", "error", "first", "last"]
    rows = [
        (
            f"{one.count:,}",
            _key(one),
            one.sample.reason,
            one.sample.origin or "?",
            _clip(_error(one.sample)),
            ago(one.first, now),
            ago(one.last, now),
        )
        for one in found.groups
    ]
    # Omit the column that repeats the property by which messages are grouped.
    twin = "from" if found.by == GroupBy.ORIGIN else found.by
    kept = [place for place, name in enumerate(columns) if place == 1 or name != twin]
    print_table(
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        right=("count", "first", "last"),
        keep=(found.by,) if found.by == GroupBy.FINGERPRINT else (),
    )
    if found.matching != found.seen or not found.complete:
        more = "" if found.complete else " (the queue contains more)"
        click.echo(f"{found.matching:,} of {count_of(found.seen)} match{more}.")
    print_not_looked_into(found.not_looked_into)


def _key(group: Group) -> str:
    """Return the value of a group. An error that has no type is described by its message."""
    return group.key or _clip(group.sample.error_message) or "(none)"


def print_not_looked_into(number: int, *, err: bool = False) -> None:
    """If there were messages that the filter could not check, print their number."""
    if number:
        click.echo(
            f"{count_of(number)} not checked: the body is too large or too deeply nested for"
            " payload terms.",
            err=err,
        )


def print_message(message: MessageView, body: bytes, payload: str = "pretty") -> None:
    """Print a message with its timeline, properties, headers and payload."""
    click.echo(safe_lines(clock_text(message.sentence)))
    click.echo()
    details(_facts(message))
    happened = [
        ("" if one.time is None else clock_text(timestamp(one.time)), one.what)
        for one in message.timeline
    ]
    _section("Timeline", happened)
    if message.failure is not None and message.failure.stack:
        click.echo(f"\nStack\n{_indent(message.failure.stack)}")
    _section("Properties", [(name, str(value)) for name, value in message.properties.items()])
    if message.headers:
        gap()
        rows = []
        for one in message.headers:
            value = one.value
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if len(shown) > _HEADER_CELL:
                shown = f"{shown[:_HEADER_CELL]}…"
            rows.append((one.name, one.type, shown))
        table(("header", "type", "value"), rows)
        if message.more_headers:
            click.echo(f"{message.more_headers:,} more headers in an export")
    headers = {one.name: one.value for one in message.headers}
    packing = find_packing(message.properties.get("contentEncoding"), headers)
    parsed = (message.payload, message.payload_encoding)
    found = show_payload(body, Form(payload), packing, parsed, "--save FILE writes all")
    notes = "; ".join(filter(None, (size_text(len(body)), found.note)))
    click.echo(f"\nPayload ({safe(notes)})\n{_indent(found.text)}")


def _facts(message: MessageView) -> Iterator[tuple[str, str]]:
    dead_letter = message.dead_letter
    yield "id", dead_letter.id
    yield "queue", dead_letter.queue
    for name, value in (
        ("type", dead_letter.type),
        ("from", dead_letter.origin),
        ("group", dead_letter.fingerprint),
    ):
        if value:
            yield name, value
    yield "route", f"exchange {dead_letter.exchange!r} with key {dead_letter.routing_key!r}"
    way = message.way
    if way is None:
        yield "goes to", f"unknown: {message.no_way}"
    else:
        yield (
            "goes to",
            place_text(way.exchange, way.routing_key)
            + ("" if way.flaw is None else f", but {way.flaw}"),
        )


def place_text(exchange: str, routing_key: str) -> str:
    """Describe where a message is sent."""
    return f"exchange {exchange} with key {routing_key}" if exchange else f"queue {routing_key}"


def _section(title: str, pairs: list[tuple[str, str]]) -> None:
    if pairs:
        click.echo(f"\n{title}")
        details([(f"  {name}", value) for name, value in pairs])


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in safe_lines(text).split("\n"))


def print_plan(plan: JobPlan, *, err: bool) -> None:
    """Print the plan of a job."""
    details(plan_lines(plan), err=err)
    for title, groups in (("reason", plan.reasons), ("error", plan.errors)):
        rows = [(f"{one.count:,}", _key(one)) for one in groups]
        if rows:
            gap(err=err)
            table(("count", title), rows, right=("count",), err=err)
    for sample in plan.changes:
        gap(err=err)
        lines = sample.diff or (f"cannot be changed: {sample.problem}",)
        click.echo(safe_lines("\n".join((f"{sample.id}:", *lines))), err=err)
    for text in plan.warnings:
        click.echo(safe(f"Warning: {text}"), err=err)
    for text in plan.flaws:
        click.echo(safe(f"Refused: {text}"), err=err)


def _consumers(reached: ReachedQueue) -> str:
    if reached.consumers is None:
        return f"{reached.queue}: number of consumers unknown"
    return f"{reached.queue}: {count_of(reached.consumers, 'consumer')}"


def plan_lines(plan: JobPlan) -> Iterator[tuple[str, str]]:
    """Yield the properties of a plan with their names."""
    yield plan.kind, f"from {plan.queue}"
    yield "messages", _count_text(plan)
    if plan.selection.filter:
        yield "filter", plan.selection.filter
    if plan.kind is JobKind.DISCARD:
        yield "export", plan.export_to or "none: discarded messages cannot be restored"
    else:
        ways = [
            f"{place_text(way.exchange, way.routing_key)}: {way.count:,}, {way.flaw or 'exists and routes'}"
            for way in plan.ways
        ]
        yield "to", "\n".join(ways) or plan.target
        if plan.reaches:
            yield "taken by", "\n".join(map(_consumers, plan.reaches))
        yield "order", plan.order
    for one in plan.left_out:
        yield "left out", f"{one.count:,}: {one.reason}"
    if plan.ramp:
        yield "ramp", ", ".join(map(str, plan.ramp)) + ", then the rest"
        yield "watch", f"after each stage and at the end {plan.watch_text}"
    if plan.stop_rule:
        yield "stops", plan.stop_rule
    if plan.duplicates:
        yield "twice", plan.duplicates
    if plan.changes:
        yield "originals", plan.export_to
    yield "browsing", plan.cost.text


def _count_text(plan: JobPlan) -> str:
    """Describe the number of messages in a plan and how accurate it is."""
    selection, count = plan.selection, f"{plan.selection.count or 0:,}"
    if selection.estimate:
        return f"about {count} of {plan.selected:,}: {selection.estimate}"
    if selection.filter:
        return f"{count} of {plan.selected:,} match the filter"
    return count if plan.seen >= plan.selected else f"{count} ({plan.seen:,} were read)"


def print_jobs(jobs: Sequence[Job], now: float) -> None:
    """Print jobs, newest first."""
    if not jobs:
        click.echo("No jobs. `hopback dlq redrive` and `hopback dlq discard` start one.")
        return
    numbers = ("done", "skipped", "failed", "returned", "started")
    columns = ("id", "kind", "queue", "state", *numbers[:4], "by", numbers[4])
    rows = [
        (
            one.id,
            one.kind,
            one.queue,
            one.state,
            f"{one.counts.done:,}/{one.matching:,}",
            f"{one.counts.skipped:,}" if one.counts.skipped else "",
            f"{one.counts.failed:,}" if one.counts.failed else "",
            came_back_text(one.counts)
            if one.counts.came_back != 0 and one.kind is JobKind.REDRIVE
            else "",
            one.by,
            ago(one.created, now),
        )
        for one in jobs
    ]
    print_table(columns, rows, right=numbers, keep=("queue",))


def came_back_text(counts: Counts) -> str:
    """Format the number of re-driven messages that were dead-lettered again, if it is known."""
    if counts.came_back is None:
        return "unknown"
    return f"{'≥ ' if counts.came_back_at_least else ''}{counts.came_back:,}"


def about(job: Job) -> str:
    """Return the word to print before the number of selected messages if it is an estimate."""
    return "about " if job.selection.estimate else ""


def export_files(job: Job) -> str:
    """Return the files that the runs of a job have written. Those of a server are not on this machine."""
    from hopback.ops.messages.archive import run_files

    return ", ".join(map(str, run_files(job.export_to, job.run))) or job.export_to


def print_job(job: Job) -> None:
    counts = job.counts
    aim = f" {job.target}" if job.kind is JobKind.REDRIVE else ""
    further = (
        (counts.skipped, "skipped"),
        (counts.failed, "failed"),
        (counts.gone, "no longer in the queue"),
        (job.left, "remaining"),
        (counts.returned, "requeued"),
        (not counts.came_back and counts.arrived_meanwhile, "arrived during the job"),
    )
    returned = f", {came_back_text(counts)} returned" if counts.came_back else ""
    first = f"{about(job)}{job.matching:,} selected, {counts.done:,} done"
    lines = [
        ("job", job.id),
        ("action", f"{job.kind} from {job.queue}{aim}"),
        ("state", job.state + (f": {clock_text(job.state_reason)}" if job.state_reason else "")),
        (
            "messages",
            ", ".join([first, *(f"{n:,} {words}" for n, words in further if n)]) + returned,
        ),
    ]
    if job.selection.filter:
        lines.append(("filter", job.selection.filter))
    if job.duplicates:
        lines.append(("twice", job.duplicates))
    if job.rate is not None:
        lines.append(("rate", f"{job.rate:g} per second"))
    if job.export_to:
        lines.append(("export", export_files(job)))
    lines.append(("by", job.by or "unknown"))
    if job.reason:
        lines.append(("why", job.reason))
    moments = (("started", job.created), ("changed", job.updated))
    details([*lines, *((name, clock_text(timestamp(at))) for name, at in moments)])
