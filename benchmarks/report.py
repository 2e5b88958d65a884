"""RESULTS.md: machine, method, tables, goals and, beside a missed one, profile and reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from benchmarks import statistics_of_runs as stats
from benchmarks.contestants import C
from benchmarks.goals import judge, reason_for
from benchmarks.rounds import Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.environment import Machine
    from benchmarks.goals import Verdict
    from benchmarks.memory import Memory
    from benchmarks.rounds import Results, Settings
    from benchmarks.workload import Scenario

__all__ = ["render"]

_METHOD = """\
One private RabbitMQ node and every client on the same machine, so the broker competes with the
client for its cores: absolute rates say little, ratios within one run and client CPU per message
say what a client costs. Persistent messages of 1 KiB, prefetch 200, manual acks, one process, one
connection and one channel per client, each client in a process of its own. The clients take turns
in every round, in changing order; a ratio is taken within each round and its median given. Before
each run the queue is made anew and filled by the C client; after it the queues are counted, so
that a client that loses or doubles a message fails its row. Every publish is mandatory and
confirmed. A run that ends before the broker has taken in its last acks (they come back when the
channel closes) is repeated. CPU is user and system time of the client process from before its
first message to its last. How many messages a run has follows from a short calibration.

The re-drive job runs as the command runs it: on uvloop, with a garbage collector that looks once in
50,000 new objects, its journal in an SQLite file, a window of 500 and three times as many messages
at hand; the shovel has its usual prefetch of 1,000. All others have prefetch 200 and Python's
defaults.
"""


def render(
    results: Results,
    settings: Settings,
    machine: Machine,
    memory: Memory | None = None,
    profiles: Mapping[tuple[str, Scenario, str], str] | None = None,
    *,
    title: str = "Benchmark results",
    command: str = "make bench",
) -> str:
    """The whole page."""
    verdicts = judge(results)
    parts = [
        f"# {title}\n",
        f"Written by `{command}` on {datetime.now(UTC):%Y-%m-%d}. Median of "
        f"{settings.rounds} rounds, lowest and highest in brackets.\n",
        *_machine(machine),
        "## Method\n",
        _METHOD,
        *_goals(verdicts, memory),
        *_tables(results, settings),
        *_missed(verdicts, profiles or {}),
        *_failures(results),
    ]
    return "\n".join(parts)


def _machine(machine: Machine) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    yield "## Machine\n"
    yield (
        f"{machine.cores} cores ({machine.processor}), {machine.memory_gib:g} GiB of memory, "
        f"{machine.system}, Python {machine.python}.\n\n{versions}.\n"
    )


def _goals(verdicts: Sequence[Verdict], memory: Memory | None) -> Iterator[str]:
    yield "## Goals\n"
    yield "| who | what | queues | goal | found | reached |\n|---|---|---|---|---|---|"
    for verdict in verdicts:
        goal = verdict.goal
        yield (
            f"| {goal.subject} | {goal.scenario.title} | {verdict.queue_type} | {goal.text} | "
            f"{verdict.found} | {_yes_no(verdict.reached)} |"
        )
    if memory is not None:
        found = f"{memory.warm_kib / 1024:.1f} → {memory.end_kib / 1024:.1f} MiB"
        yield (
            f"| Hopback | publish and consume {memory.count:,} messages | classic | "
            f"memory flat after the first tenth | {found} | {_yes_no(memory.flat)} |"
        )
    yield ""


def _yes_no(reached: bool | None) -> str:
    return {True: "yes", False: "**no**", None: "not measured"}[reached]


def _tables(results: Results, settings: Settings) -> Iterator[str]:
    for queue_type in settings.queue_types:
        for scenario in settings.scenarios:
            yield f"## {scenario.title}, {queue_type} queues\n"
            yield "| client | msg/s | CPU µs per message | × C client | × aio-pika |"
            yield "|---|---|---|---|---|"
            cases = [
                c for c in results.runs if (c.queue_type, c.scenario) == (queue_type, scenario)
            ]
            yield from (_row(results, case) for case in sorted(cases, key=_speed(results)))
            yield ""


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
    verdicts: Sequence[Verdict], profiles: Mapping[tuple[str, Scenario, str], str]
) -> Iterator[str]:
    missed = [verdict for verdict in verdicts if verdict.reached is False]
    if not missed:
        return
    yield "## Missed, and why\n"
    for verdict in missed:
        goal = verdict.goal
        yield (
            f"- {goal.subject}, {goal.scenario.title}, {verdict.queue_type}: {goal.text}, found "
            f"{verdict.found}. {reason_for(verdict)}"
        )
    yield ""
    for (queue_type, scenario, subject), profile in sorted(profiles.items()):
        title = f"{subject}, {scenario.title}, {queue_type} queues"
        yield f"Profile of {title}:\n\n```\n{profile}\n```\n"


def _failures(results: Results) -> Iterator[str]:
    if results.failures:
        yield "## Runs that failed\n"
        yield from (f"- {line.splitlines()[0]}" for line in results.failures)
        yield ""
