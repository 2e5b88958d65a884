"""RESULTS.md: machine, method, tables, goals and, beside a missed one, profile and reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import statistics_of_runs as stats
from benchmarks.contestants import C
from benchmarks.environment import ROOT
from benchmarks.goals import judge, reason_for, reason_in_table
from benchmarks.grouping import BOUND_KIB
from benchmarks.measured_sections import INSTALLED, Measurements
from benchmarks.rounds import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.environment import Machine
    from benchmarks.goals import Verdict
    from benchmarks.grouping import Grouping
    from benchmarks.measured_sections import Section, Stamp, Table
    from benchmarks.rounds import Results

__all__ = ["keep", "keep_table", "render", "section_text"]

_PAGE = ROOT / "benchmarks" / "RESULTS.md"

_METHOD = """\
One private RabbitMQ node and every client on the same machine, so the broker competes with the
client for its cores: absolute rates say little, ratios within one run and client CPU per message
say what a client costs. Persistent messages of 1 KiB, prefetch 200, manual acks, one process, one
connection and one channel per client, each client in a process of its own. The clients take turns
in every round, in changing order; a ratio is taken within each round and its median given. Before
each run the queue is made anew and filled by the C client, each message with an id of its own;
after it the queues are counted, so that a client that loses or doubles a message fails its row.
Every publish is mandatory and confirmed. A run that ends before the broker has taken in its last
acks (they come back when the channel closes) is repeated. CPU is user and system time of the client
process from before its first message to its last. How many messages a run has follows from a short
calibration. A section has three rounds; where they disagree about a goal, the clients it concerns
have up to two more. Each says when it was measured, from which commit, on which broker and at which
load average.

`pika, traced` does around its callback what OpenTelemetry's instrumentation of pika does. `aio-pika,
counted` has a counter and a histogram of the Prometheus client around its handler, FastStream its own
metrics middleware; Hopback what `hopback run --http` switches on.

`bare asyncio` publishes one by one with nothing but a protocol of asyncio's: the frames are ready made, and
whatever comes back is taken for the confirm. Where the handler awaits round trips, `Hopback` is its broker
port with a hundred tasks that take a delivery, make the round trips and ack; both it and the loop without
a broker have their process set up as the command does, so that a read costs all three the same.

The application and the re-drive job have a garbage collector that looks once in 50,000 new objects and
free a megabyte before they begin, as the command does. The job also runs on uvloop, with its journal in an
SQLite file, a window of 500 and three times as many messages at hand; the shovel has its usual prefetch of
1,000. All others have prefetch 200 and Python's defaults.
"""
_GROUPED_A_SECOND = 10_000


def keep(measured: Measurements) -> None:
    """Write down what was measured, and the page from it."""
    measured.save()
    _PAGE.write_text(render(measured), encoding="utf-8")


def keep_table(table: Table) -> None:
    """The same, with one table anew."""
    keep(Measurements.load().with_table(table))


def render(measured: Measurements) -> str:
    """The whole page."""
    judged = [(section, judge(section.results)) for section in measured.sections]
    parts = [
        "# Benchmark results\n",
        "Written by `make bench` from what it measured (`results.json` beside this page), nothing of it by"
        " hand. Medians, the lowest and the highest in brackets.\n",
        *([] if measured.machine is None else _machine(measured.machine)),
        "## Method\n",
        _METHOD,
        *_goals(judged, measured),
        *(section_text(section) for section in measured.sections),
        *_memory(measured),
        *(
            f"## {table.title}\n\n{_stamped(table.stamp)}.\n\n{table.text}"
            for table in measured.tables
        ),
        *_missed(judged, measured.tables),
        *_failures(measured.sections),
    ]
    return "\n".join(parts)


def _machine(machine: Machine) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    yield "## Machine\n"
    yield (
        f"{machine.cores} cores ({machine.processor}), {machine.memory_gib:g} GiB of memory, "
        f"{machine.system}, Python {machine.python}.\n\n{versions}.\n"
    )


def _goals(
    judged: Sequence[tuple[Section, tuple[Verdict, ...]]], measured: Measurements
) -> Iterator[str]:
    yield "## Goals\n"
    yield "| who | what | broker | queues | goal | found | reached |\n|---|---|---|---|---|---|---|"
    for section, verdicts in judged:
        for verdict in verdicts:
            goal = verdict.goal
            yield (
                f"| {goal.subject} | {goal.scenario.title} | {section.stamp.broker} |"
                f" {verdict.queue_type} | {goal.text} | {verdict.found} | {_yes_no(verdict.reached)} |"
            )
    if measured.memory is not None:
        memory, stamp = measured.memory
        found = f"{memory.warm_kib / 1024:.1f} → {memory.end_kib / 1024:.1f} MiB"
        yield (
            f"| Hopback | publish and consume {memory.count:,} messages | {stamp.broker} | classic | "
            f"memory flat after the first tenth | {found} | {_yes_no(memory.flat)} |"
        )
    for grouping, stamp in measured.groupings:
        is_small, is_quick = grouping.grown_kib <= BOUND_KIB, grouping.rate >= _GROUPED_A_SECOND
        yield (
            f"| Hopback | group {grouping.count:,} dead letters of 20 headers | {stamp.broker} | classic |"
            f" ≥ {_GROUPED_A_SECOND:,} a second, within {BOUND_KIB // 1024} MiB | {grouping.rate:,.0f},"
            f" {grouping.grown_kib / 1024:.1f} MiB | {_yes_no(is_small and is_quick)} |"
        )
    for table in measured.tables:
        for each in table.goals:
            yield (
                f"| Hopback | {each.what} | {table.stamp.broker} | – | {each.goal} | {each.found} |"
                f" {_yes_no(each.reached)} |"
            )
    yield ""


def _yes_no(reached: bool | None) -> str:
    return {True: "yes", False: "**no**", None: "not measured"}[reached]


def section_text(section: Section) -> str:
    """The table of one section, with its stamp."""
    results = section.results
    where = f", RabbitMQ {section.series}" if section.series != INSTALLED else ""
    lines = [
        f"## {section.scenario.title}, {section.queue_type} queues{where}\n",
        f"{_stamped(section.stamp)}; {section.rounds} rounds.\n",
        "| client | msg/s | CPU µs per message | × C client | × aio-pika |",
        "|---|---|---|---|---|",
        *(_row(results, case) for case in sorted(results.runs, key=_speed(results))),
        "",
    ]
    return "\n".join(lines)


def _stamped(stamp: Stamp) -> str:
    broker = f" with RabbitMQ {stamp.broker}" if stamp.broker else ""
    return f"Measured on {stamp.day} at {stamp.commit}{broker}, load average {stamp.load:g}"


def _memory(measured: Measurements) -> Iterator[str]:
    if measured.memory is not None:
        memory, stamp = measured.memory
        yield "## Memory\n"
        yield (
            f"{_stamped(stamp)}. Hopback, {memory.count:,} messages published and consumed in one process:"
            f" {memory.warm_kib / 1024:.1f} MiB after the first tenth, {memory.end_kib / 1024:.1f} MiB at"
            f" the end.\n"
        )
    if measured.groupings:
        yield "## Grouping a dead-letter queue\n"
        yield from (_grouped(*each) for each in measured.groupings)


def _grouped(grouping: Grouping, stamp: Stamp) -> str:
    return (
        f"{_stamped(stamp)}. {grouping.count:,} dead letters of 1 KiB and 20 headers in a classic queue,"
        f" grouped by fingerprint in one pass: {grouping.seconds:.1f} s, {grouping.rate:,.0f} a second,"
        f" {grouping.cpu_seconds / grouping.count * 1e6:.1f} µs of CPU each. The process grew by"
        f" {grouping.grown_kib / 1024:.1f} MiB; another task waited {grouping.stall_ms} ms at most.\n"
    )


def _speed(results: Results) -> Callable[[Case], float]:
    def key(case: Case) -> float:
        found = stats.rates(results, case)
        return -found.median if found else 0.0

    return key


def _row(results: Results, case: Case) -> str:
    rate, cpu = stats.rates(results, case), stats.cpu_us(results, case)
    if rate is None or cpu is None:
        return f"| {case.name} | failed | | | |"
    against = (Case(case.queue_type, case.scenario, name) for name in (C, "aio-pika"))
    ratios = " | ".join(_times(stats.ratio(results, case, other)) for other in against)
    return (
        f"| {case.name} | {rate.median:,.0f} ({rate.low:,.0f}–{rate.high:,.0f}) | "
        f"{cpu.median:.1f} ({cpu.low:.1f}–{cpu.high:.1f}) | {ratios} |"
    )


def _times(found: stats.Spread | None) -> str:
    return f"{found.median:.2f} ({found.low:.2f}–{found.high:.2f})" if found else "–"


def _missed(
    judged: Sequence[tuple[Section, tuple[Verdict, ...]]], tables: Sequence[Table]
) -> Iterator[str]:
    missed = [
        (section, verdict)
        for section, verdicts in judged
        for verdict in verdicts
        if verdict.reached is False
    ]
    beside = [(table, goal) for table in tables for goal in table.goals if not goal.reached]
    if not missed and not beside:
        return
    yield "## Missed, and why\n"
    for section, verdict in missed:
        goal = verdict.goal
        yield (
            f"- {goal.subject}, {goal.scenario.title}, {verdict.queue_type}, RabbitMQ"
            f" {section.stamp.broker}: {goal.text}, found {verdict.found}. {reason_for(verdict)}"
        )
    for table, each in beside:
        why = reason_in_table(table.name, each.what)
        yield f"- {table.title}, {each.what}: {each.goal}, found {each.found}. {why}"
    yield ""
    for section, _ in judged:
        for subject, profile in sorted(section.profiles.items()):
            where = f"{section.queue_type} queues, RabbitMQ {section.stamp.broker}"
            yield f"Profile of {subject}, {section.scenario.title}, {where}:\n\n```\n{profile}\n```\n"


def _failures(sections: Sequence[Section]) -> Iterator[str]:
    failures = [line for section in sections for line in section.results.failures]
    if failures:
        yield "## Runs that failed\n"
        yield from (f"- {line.splitlines()[0]}" for line in failures)
        yield ""
