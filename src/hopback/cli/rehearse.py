"""The command `hopback rehearse`, which simulates an outage in virtual time and shows queue depths,
dead letters and the recovery.
"""

from __future__ import annotations

import asyncio
import csv
import io
import sys
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hopback.cli.broker_options import Access, reach_management
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import format_option
from hopback.cli.terminal import document, gap, json_text, on_terminal, table
from hopback.cli.topology_options import TopologySource, broker_version_option, topology_source
from hopback.rehearse.engine import EngineKind
from hopback.rehearse.engine import rehearse as play
from hopback.rehearse.findings import TimedFinding, findings_of
from hopback.rehearse.forecast import Forecast, csv_rows, forecast_document
from hopback.rehearse.page import html_page, title_of
from hopback.rehearse.quantities import (
    parse_consumers,
    parse_rate,
    parse_seconds,
    parse_share,
    parse_size,
    parse_spread,
    show_bytes,
    show_count,
    show_seconds,
)
from hopback.rehearse.scenario import (
    ArrivalKind,
    Load,
    Outage,
    RateStep,
    Scenario,
    read_profile,
    read_scenario,
)
from hopback.rehearse.station import time_for
from hopback.text import one_line as safe
from hopback.text import safe_lines
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hopback.broker.management.readings import QueueReading
    from hopback.runtime.app import App
    from hopback.topology.model import Topology

_T = TypeVar("_T")

_OUTAGE_START_S = 300.0
"""Seconds. By default, outages start at this time, so that the normal state is visible first."""
_MOST_BYTES = 64 * 1024 * 1024
"""The maximum size of a scenario file or a profile in bytes. A wrong file must not use up the
memory.
"""
_LIVE = "live"
"""With this value of --rate, the rate is read from the statistics of the broker."""


@dataclass(frozen=True, slots=True)
class RehearseOptions:
    """The options that define a scenario. Options that were not given are None or ()."""

    file: str | None
    queue: str | None
    rate: float | str | None
    outages: tuple[Outage, ...]
    fail: float | None
    poison: float | None
    handler: tuple[float, float] | None
    consumers: tuple[int, int] | None
    breaker: bool
    arrivals: str | None
    burst_every: float | None
    profile: str | None
    size: int | None
    length: float | None
    seed: int | None
    version: BrokerVersion | None
    broker: str | None
    management: str | None

    def list_given(self) -> list[str]:
        """Return the names of all given options that a scenario file would replace."""
        given = {
            "--queue": self.queue, "--rate": self.rate, "--outage": self.outages or None,
            "--fail": self.fail, "--poison": self.poison, "--handler": self.handler,
            "--consumers": self.consumers, "--breaker": self.breaker or None,
            "--arrivals": self.arrivals, "--burst-every": self.burst_every,
            "--profile": self.profile, "--size": self.size, "--for": self.length,
        }  # fmt: skip
        return [name for name, value in given.items() if value is not None]


def _parse_with(parse: Callable[[str], _T]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Convert a parser to a Click callback. If an option is repeatable, each value is parsed."""

    def read(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(parse(one) for one in value)
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(f"{error}.", ctx, option) from error

    return read


def _parse_outage(text: str) -> Outage:
    """Parse an outage like `20m` or `20m@1h`, where `@1h` is the start."""
    length, _, start = text.partition("@")
    return Outage(parse_seconds(start) if start else _OUTAGE_START_S, parse_seconds(length))


@click.command(short_help="Predict depths, dead letters and recovery of an outage.")
@topology_source
@click.option(
    "--scenario", "file", metavar="TOML", help="Scenario file with queues, rates and outages."
)
@click.option("--queue", metavar="Q", help="The queue. Required if there are several.")
@click.option(
    "--rate", callback=_parse_with(lambda text: _LIVE if text == _LIVE else parse_rate(text)),
    metavar="R", help="500/s, 30k/min, 2M/h, or `live` to read it from --broker.",
)  # fmt: skip
@click.option(
    "--outage", "outages", multiple=True, callback=_parse_with(_parse_outage), metavar="D[@START]",
    help="Duration of an outage in which all runs fail, from START (5m). Repeatable.",
)  # fmt: skip
@click.option(
    "--fail",
    callback=_parse_with(parse_share),
    metavar="P",
    help="Share of runs that fail, such as 5%.",
)
@click.option(
    "--poison",
    callback=_parse_with(parse_share),
    metavar="P",
    help="Share of messages that always fail, such as 1%.",
)
@click.option(
    "--handler", callback=_parse_with(parse_spread), metavar="D[±D]",
    help="Duration of a run, such as 40ms±20ms.",
)  # fmt: skip
@click.option(
    "--consumers", callback=_parse_with(parse_consumers), metavar="P×C",
    help="Processes × concurrency of each, such as 4×10 or 4x10.",
)  # fmt: skip
@click.option("--breaker", is_flag=True, help="Add a breaker with default settings.")
@click.option(
    "--arrivals", type=click.Choice([str(kind) for kind in ArrivalKind]),
    help="Distribution of arrivals. Default: constant.",
)  # fmt: skip
@click.option(
    "--burst-every", callback=_parse_with(parse_seconds), metavar="D",
    help="Time between bursts for --arrivals bursts. Default: 1m.",
)  # fmt: skip
@click.option("--profile", metavar="CSV", help="Recorded rates, in rows of seconds,rate.")
@click.option(
    "--size", callback=_parse_with(parse_size), metavar="B", help="Message size, such as 1KiB."
)
@click.option(
    "--for",
    "length",
    callback=_parse_with(parse_seconds),
    metavar="D",
    help="Duration of the rehearsal, such as 2h.",
)
@click.option("--seed", type=int, metavar="N", help="Seed of the random numbers. Default: 0.")
@click.option(
    "--engine", type=click.Choice([str(kind) for kind in EngineKind]), default="fluid",
    show_default=True, help="Fluid model, or exact simulation of each message.",
)  # fmt: skip
@click.option(
    "--advise", "goals", multiple=True, metavar="GOAL",
    help="Find the cheapest plan for a goal: `no dead letters up to 1h outage`, `recovered"
    " within 15m`, `at most 50 retries/s`. Repeatable.",
)  # fmt: skip
@broker_version_option("RabbitMQ version to rehearse, for example 3.10. Default: 4.0.")
@click.option(
    "--broker", envvar="HOPBACK_BROKER", metavar="URL",
    help="amqp(s):// address for --rate live. Also HOPBACK_BROKER.",
)  # fmt: skip
@click.option(
    "--management", envvar="HOPBACK_MANAGEMENT", metavar="URL",
    help="Management API for --rate live. Default: the broker's host.",
)  # fmt: skip
@format_option("text", "json", "csv", "svg", "html")
@click.option(
    "--detailed-exit-code", is_flag=True, help="Exit with status 10 on any error or warning."
)
def rehearse(
    source: TopologySource,
    engine: str,
    goals: tuple[str, ...],
    form: str,
    detailed_exit_code: bool,
    **chosen: Any,
) -> int:
    """Predict queue depths, dead letters and the recovery time of an outage.

    The topology is a SYSTEM, a FILE or an application (MODULE:APP). If it is an application, the
    concurrency of its handlers is used. `-o html` and `-o svg` draw charts, so redirect them to a
    file.
    """
    if goals and (detailed_exit_code or engine != EngineKind.FLUID):
        raise click.UsageError(
            "--advise uses the fluid engine and has its own exit status: remove --engine exact and"
            " --detailed-exit-code."
        )
    app = source.app()
    topology = source.topology() if app is None else app.topology
    options = RehearseOptions(**chosen)
    if options.file is not None:
        scenario = _from_file(options.file, options)
    else:
        scenario = _from_options(topology, app, options)
    if goals:
        return print_advice(topology, scenario, goals, form)
    with _progress(engine) as progress:
        forecast = play(topology, scenario, EngineKind(engine), progress=progress)
    findings = findings_of(topology, forecast)
    print_forecast(forecast, findings, form)
    grave = any(finding.severity.rank < 2 for finding in findings)
    return Exit.FOUND if detailed_exit_code and grave else Exit.OK


def _from_file(name: str, options: RehearseOptions) -> Scenario:
    given = options.list_given()
    if given:
        raise click.UsageError(f"{', '.join(given)}: the scenario file defines it.")
    path = Path(name)
    scenario = read_scenario(
        _text(path),
        where=name,
        profile=lambda other: _text(path.parent / other),
        live=lambda queue: _live_reading(queue, options)[0],
    )
    return replace(
        scenario,
        version=options.version or scenario.version,
        seed=scenario.seed if options.seed is None else options.seed,
    )


def _from_options(topology: Topology, app: App | None, options: RehearseOptions) -> Scenario:
    if options.rate is not None and options.profile is not None:
        raise click.UsageError("--rate and --profile both define the rate: remove one of them.")
    if options.burst_every is not None and options.arrivals != ArrivalKind.BURSTS:
        raise click.UsageError("--burst-every needs --arrivals bursts.")
    queues = [plan.queue for plan in topology.plans]
    if options.queue is None and len(queues) != 1:
        raise CommandFailed(
            f"expected --queue: {topology.name} has {len(queues) or 'no'} queues with a plan",
            do=f"Name one of {', '.join(queues)}, or give a --scenario file."
            if queues
            else "Definitions contain no plans: write a .toml file.",
            code=Exit.USAGE,
        )
    queue = options.queue or queues[0]
    usual = Load(queue, ())
    handler_s, spread_s = options.handler or (usual.handler_s, usual.spread_s)
    load = replace(
        usual,
        arrivals=ArrivalKind(options.arrivals or usual.arrivals),
        burst_s=usual.burst_s if options.burst_every is None else options.burst_every,
        fail=options.fail or usual.fail,
        poison=options.poison or usual.poison,
        handler_s=handler_s,
        spread_s=spread_s,
        size=options.size or usual.size,
    )
    if app is not None:
        load = _as_handled(load, app)
    load = _with_traffic(load, options)
    if options.consumers is not None:
        processes, concurrency = options.consumers
        load = replace(load, processes=processes, concurrency=concurrency)
    if options.breaker:
        from hopback.policy.breaker import BreakerPolicy

        load = replace(load, breaker=BreakerPolicy())
    length = options.length
    return Scenario(
        loads=(load,),
        duration_s=time_for(topology.plan(queue), options.outages) if length is None else length,
        outages=options.outages,
        seed=options.seed or 0,
        version=options.version or BrokerVersion(4, 0),
        name="hopback rehearse",
    )


def _as_handled(load: Load, app: App) -> Load:
    """Return the load with the concurrency, the prefetch and the breaker of the application's
    handler.
    """
    from hopback.runtime.handler import Handler

    handler = app.handlers.get(load.queue)
    if handler is None:
        return load
    if not isinstance(handler, Handler):
        # The model handles single messages, so only the breaker of a batch handler is used.
        return replace(load, breaker=handler.options.breaker)
    options = handler.options
    return replace(
        load,
        concurrency=options.concurrency,
        prefetch=options.prefetch,
        breaker=options.breaker,
    )


def _with_traffic(load: Load, options: RehearseOptions) -> Load:
    """Return the load with its traffic, which comes from a profile, a rate, or a live broker. The
    live broker also provides the number of consumers.
    """
    if options.profile is not None:
        try:
            return replace(load, rates=read_profile(_text(Path(options.profile))))
        except ValueError as error:
            raise CommandFailed(
                f"{options.profile}: {error}",
                do="Write rows like 0,500 and 3600,800.",
                code=Exit.USAGE,
            ) from error
    if options.rate is None:
        raise click.UsageError(
            "expected --rate, --profile or --scenario to define how many messages arrive."
        )
    if isinstance(options.rate, float):
        return replace(load, rates=(RateStep(0.0, options.rate),))
    rate, processes = _live_reading(load.queue, options)
    return replace(load, rates=(RateStep(0.0, rate),), processes=processes)


def _live_reading(queue: str, options: RehearseOptions) -> tuple[float, int]:
    """Return the rate and the number of consumers of a queue from the statistics of the broker."""
    from hopback.broker.management import virtual_host

    if options.broker is None:
        raise click.UsageError("a rate of `live` needs --broker (or HOPBACK_BROKER).")
    access = Access(options.broker, options.management)

    async def read() -> QueueReading:
        async with AsyncExitStack() as stack:
            management = await reach_management(access, stack)
            if management is None:
                raise CommandFailed(
                    "the management API does not respond, and rates are only available there",
                    do="Name it with --management, or give --rate as a number.",
                    code=Exit.UNREACHABLE,
                )
            return await management.queue(virtual_host(access.broker), queue)

    found = asyncio.run(read())
    if found.publish_rate is None:
        raise CommandFailed(
            f"the statistics of queue {queue!r} contain no rate, because it has received no messages",
            do="Give --rate as a number.",
            code=Exit.NOT_FOUND,
        )
    return found.publish_rate, found.counts.consumers or 1


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(
            f"{path} cannot be read: {error}", do="Name a text file.", code=Exit.NOT_FOUND
        ) from error


@contextmanager
def _progress(engine: str) -> Iterator[Callable[[float], object] | None]:
    """Show a progress bar on stderr if the exact engine is used and stderr is a terminal."""
    if engine != EngineKind.EXACT or not on_terminal(err=True):
        yield None
        return
    with click.progressbar(length=1000, label="rehearsing", file=sys.stderr) as bar:
        yield lambda share: bar.update(max(0, round(share * 1000) - bar.pos))


_CHART_HEIGHT = 3
"""Lines of a chart. Six charts and the totals fit on a screen."""
_CHART_WIDTH = 72
"""Columns of a chart. A terminal has 80, and the line with the outages ends with a word."""
_MOST_CHARTS = 6
"""The maximum number of charts, for the fullest queues. The table contains all queues."""


def print_forecast(forecast: Forecast, findings: Sequence[TimedFinding], form: str) -> None:
    """Print a forecast in one of the formats of `-o`."""
    if form == "json":
        rows = [
            {
                "rule": one.rule,
                "severity": str(one.severity),
                "place": one.place,
                "explanation": one.explanation,
                "fix": one.fix,
                "atSeconds": None if one.at_s is None else round(one.at_s, 3),
            }
            for one in findings
        ]
        document(json_text({**forecast_document(forecast), "findings": rows}))
    elif form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(csv_rows(forecast))
        document(text.getvalue())
    elif form == "svg":
        from hopback.rehearse.chart import charts_of, svg_document

        document(svg_document(title_of(forecast), charts_of(forecast, findings)))
    elif form == "html":
        document(html_page(forecast, findings))
    else:
        _print_text(forecast, findings)


def _print_text(forecast: Forecast, findings: Sequence[TimedFinding]) -> None:
    click.echo(safe(title_of(forecast)))
    gap()
    _print_charts(forecast)
    rows = [
        (queue.queue, queue.role, show_count(queue.peak),
         show_seconds(queue.peak_s), show_count(queue.depth[-1]))
        for queue in forecast.queues
    ]  # fmt: skip
    table(("queue", "role", "peak", "at", "end"), rows, right=("peak", "at", "end"))
    gap()
    for course in forecast.stations:
        first = course.first_dead_letter_s
        since = "" if first is None else f", the first after {show_seconds(first)}"
        text = (
            f"{course.queue}: {show_count(course.published)} published, {show_count(course.run_count)}"
            f" runs, {show_count(course.retried)} retries, {show_count(course.done)} done,"
            f" {show_count(course.dead_letters)} dead letters{since}, {show_count(course.left)} left;"
            f" up to {show_count(course.most_retrying)} in retry at once, the oldest"
            f" {show_seconds(max(course.oldest_s))} old."
        )
        click.echo(safe(text))
    click.echo(
        f"Waiting messages take up to {show_bytes(max(forecast.memory))} of the broker's memory and"
        f" {show_bytes(max(forecast.disk))} of its disk."
    )
    if findings:
        gap()
    for finding in findings:
        click.echo(safe(f"{finding.severity}: {finding.place} [{finding.rule}]"))
        for text in (finding.explanation, f"Fix: {finding.fix}"):
            click.echo(click.wrap_text(safe(text), 98, "  ", "  "))


def _print_charts(forecast: Forecast) -> None:
    """Print charts of the fullest queues, and a line that shows the outages."""
    from hopback.rehearse.chart import braille_chart

    full = sorted(forecast.queues, key=lambda queue: -queue.peak)
    for queue in [one for one in full if one.peak >= 1][:_MOST_CHARTS]:
        click.echo(safe(f"{queue.queue} up to {show_count(queue.peak)}"))
        for line in braille_chart(
            queue.depth, width=_CHART_WIDTH, height=_CHART_HEIGHT, top=queue.peak
        ):
            click.echo(line)
    outages, length = forecast.scenario.outages, forecast.scenario.duration_s / _CHART_WIDTH
    if outages:
        cells = [(cell * length, (cell + 1) * length) for cell in range(_CHART_WIDTH)]
        down = (any(o.start_s < end and o.end_s > begin for o in outages) for begin, end in cells)
        click.echo("".join("━" if one else "─" for one in down) + "  outage")
    middle, end = show_seconds(forecast.times[-1] / 2), show_seconds(forecast.times[-1])
    click.echo(f"0s{middle.center(_CHART_WIDTH - 2 - len(end))}{end}")
    gap()


def print_advice(topology: Topology, scenario: Scenario, goals: Sequence[str], form: str) -> Exit:
    """Print a table of the cheapest plans that meet the goals, and the best plan in a form that can
    be copied.
    """
    from hopback.rehearse import advise as advice

    try:
        wanted = [advice.parse_goal(goal) for goal in goals]
    except ValueError as error:
        raise click.UsageError(f"--advise: {error}.") from error
    if form not in ("text", "json"):
        raise click.UsageError("--advise prints text or json.")
    if len(scenario.loads) != 1:
        raise click.UsageError(
            "--advise is for one queue: name --queue instead of a scenario of several."
        )
    found = advice.advise(topology, scenario, scenario.loads[0].queue, wanted)
    met = [one for one in found if one.met]
    columns = ("change", "plan", "dead letters", "recovery", "failed calls", "deepest", "cost")
    rows = list(advice.table_rows(found))
    jitter = advice.jitter_note(scenario, wanted, found[0])
    if form == "json":
        proposals = [dict(zip(columns, row, strict=True)) for row in rows[: len(found)]]
        best = advice.decorator_line(met[0]) if met else None
        data = {"goals": list(goals), "proposals": proposals, "best": best}
        document(json_text({**data, "notOffered": {"jitter": jitter}}))
        return Exit.OK if met else Exit.FAILED
    table(columns, rows, right=columns[2:])
    gap()
    click.echo(safe(jitter))
    gap()
    if not met:
        click.echo("No tested plan meets all goals. Relax a goal or remove one.")
    elif not met[0].changes:
        click.echo("The current plan meets all goals.")
    else:
        click.echo(
            f"{safe(advice.decorator_line(met[0]))}\n\n{safe_lines(advice.toml_lines(met[0]))}",
            nl=False,
        )
    return Exit.OK if met else Exit.FAILED
