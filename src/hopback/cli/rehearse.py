"""`hopback rehearse`: an outage in virtual time, with its queues, dead letters and recovery."""

from __future__ import annotations

import csv
import io
import math
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import (
    TopologySource,
    broker_version_option,
    format_option,
    topology_source,
)
from hopback.cli.terminal import document, gap, json_text, on_terminal, safe, safe_lines, table
from hopback.rehearse.engine import EngineKind
from hopback.rehearse.engine import rehearse as play
from hopback.rehearse.findings import findings_of
from hopback.rehearse.forecast import csv_rows, forecast_document
from hopback.rehearse.quantities import (
    parse_consumers,
    parse_rate,
    parse_seconds,
    parse_share,
    parse_size,
    parse_spread,
    show_bytes,
    show_count,
    show_rate,
    show_seconds,
)
from hopback.rehearse.scenario import ArrivalKind, Load, Outage, RateStep, Scenario
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hopback.rehearse.forecast import Forecast
    from hopback.runtime.app import App
    from hopback.topology.check import Finding
    from hopback.topology.model import Topology

__all__ = ["rehearse"]

_OUTAGE_START_S = 300.0
"""An outage begins after five minutes unless it says otherwise: before it there is something to see."""
_CHART_HEIGHT = 3
_CHART_WIDTH = 72
_MOST_CHARTS = 6
_MOST_LINES = 1_000_000
"""Bytes of a scenario file or a profile that are read at most, times 64."""


def _parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """An option's text by a parser that says what it expected."""

    def read(ctx: click.Context, option: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(f"{error}.", ctx, option) from error

    return read


def _outage(text: str) -> tuple[float, float]:
    """Length and start of `20m` or `20m@1h`."""
    length, _, start = text.partition("@")
    return parse_seconds(length), parse_seconds(start) if start else _OUTAGE_START_S


@click.command(short_help="Rehearse an outage: depths, dead letters, recovery, in virtual time.")
@topology_source
@click.option("--scenario", "file", metavar="TOML", help="Several queues, rates, outages: a file.")
@click.option("--queue", metavar="Q", help="The queue; needed where there are several.")
@click.option("--rate", callback=_parsed(parse_rate), metavar="R", help="500/s, 30k/min, 2M/h.")
@click.option(
    "--outage", "outages", multiple=True, metavar="D[@START]",
    help="All runs fail for so long, from 5m on or from START; repeatable.",
)  # fmt: skip
@click.option("--fail", callback=_parsed(parse_share), metavar="P", help="Runs that fail: 5%.")
@click.option(
    "--poison", callback=_parsed(parse_share), metavar="P", help="Messages that always fail: 1%."
)
@click.option(
    "--handler",
    callback=_parsed(parse_spread),
    metavar="D[±D]",
    help="How long a run takes: 40ms±20ms.",
)
@click.option(
    "--consumers", callback=_parsed(parse_consumers), metavar="P×C",
    help="Processes × handlers at once in each: 4×10 (or 4x10).",
)  # fmt: skip
@click.option("--breaker", is_flag=True, help="With a breaker of the usual settings.")
@click.option(
    "--arrivals", type=click.Choice([str(kind) for kind in ArrivalKind]), default="constant",
    show_default=True, help="How messages come.",
)  # fmt: skip
@click.option("--profile", metavar="CSV", help="Recorded rates: rows of seconds,rate.")
@click.option("--size", callback=_parsed(parse_size), metavar="B", help="Bytes of a message: 1KiB.")
@click.option("--for", "length", callback=_parsed(parse_seconds), metavar="D", help="How long: 2h.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed, the same result."
)
@click.option(
    "--engine", type=click.Choice([str(kind) for kind in EngineKind]), default="fluid",
    show_default=True, help="Flows in milliseconds, or message by message.",
)  # fmt: skip
@click.option(
    "--advise", "goals", multiple=True, metavar="GOAL",
    help="`no dead letters up to 1h outage`, `recovered within 15m`, `at most 50 retries/s`; repeatable.",
)  # fmt: skip
@broker_version_option("Rehearse on this RabbitMQ, for example 3.10; by default 4.0.")
@format_option("text", "json", "csv")
@click.option("--detailed-exit-code", is_flag=True, help="Leave with 10 for any error or warning.")
def rehearse(
    name: str,
    hardened: bool,
    params: tuple[tuple[str, str], ...],
    engine: str,
    form: str,
    detailed_exit_code: bool,
    **said: Any,
) -> int:
    """Rehearse an outage: how deep queues get, what is parked, when all is well again.

    The topology is that of a SYSTEM, a FILE or an application (module:app), whose handlers also say how
    many of them run at once.
    """
    app = _application(name)
    topology = TopologySource(name, hardened, params).topology() if app is None else app.topology
    scenario = _scenario(topology, app, said)
    if said["goals"]:
        return _advise(topology, scenario, said["goals"], form)
    with _progress(engine) as progress:
        forecast = play(topology, scenario, EngineKind(engine), progress=progress)
    findings = findings_of(topology, forecast)
    _print(forecast, findings, form)
    grave = any(finding.severity.rank < 2 for finding in findings)
    return Exit.FOUND if detailed_exit_code and grave else Exit.OK


# --- what was said -------------------------------------------------------------------------------


def _application(name: str) -> App | None:
    """The application that `module:app` names; None for a system or a file."""
    if ":" not in name or Path(name).exists():
        return None
    from hopback.cli.run import load_app

    return load_app(name)


def _scenario(topology: Topology, app: App | None, said: dict[str, Any]) -> Scenario:
    version = said["version"]
    if said["file"] is not None:
        scenario = _read_file(Path(said["file"]), said)
        return replace(scenario, version=version) if version else scenario
    load = _load(topology, app, said)
    outages = tuple(_outage_of(text) for text in said["outages"])
    length = said["length"] or _long_enough(topology, load, outages)
    return Scenario(
        loads=(load,),
        duration_s=length,
        outages=outages,
        seed=said["seed"],
        version=version or BrokerVersion(4, 0),
        name="hopback rehearse",
    )


def _outage_of(text: str) -> Outage:
    try:
        length, start = _outage(text)
    except ValueError as error:
        raise click.UsageError(f"--outage: {error}.") from error
    return Outage(start, length)


def _long_enough(topology: Topology, load: Load, outages: Sequence[Outage]) -> float:
    """Until the last retry of the last outage, and half an hour more; whole five minutes."""
    plan = topology.plan(load.queue)
    waits = [] if plan is None else [tier.delay_ms / 1000 for tier in plan.tiers]
    more = 0 if plan is None else plan.attempts - 1 - len(waits)
    span = sum(waits) + max(0, more) * (waits[-1] if waits else 0.0)
    end = max((outage.end_s for outage in outages), default=_OUTAGE_START_S)
    return math.ceil((end + span + 1800) / 300) * 300.0


def _load(topology: Topology, app: App | None, said: dict[str, Any]) -> Load:
    queue = said["queue"] or _only_queue(topology)
    handler_s, spread_s = said["handler"] or (0.04, 0.0)
    given = Load(
        queue=queue,
        rates=_rates(said),
        arrivals=ArrivalKind(said["arrivals"]),
        fail=said["fail"] or 0.0,
        poison=said["poison"] or 0.0,
        handler_s=handler_s,
        spread_s=spread_s,
        size=said["size"] or 1000,
    )
    given = given if app is None else _as_handled(given, app)
    if said["consumers"] is not None:
        processes, concurrency = said["consumers"]
        given = replace(given, processes=processes, concurrency=concurrency)
    if said["breaker"]:
        from hopback.policy.breaker import BreakerPolicy

        given = replace(given, breaker=BreakerPolicy())
    return given


def _as_handled(load: Load, app: App) -> Load:
    """With the concurrency, the prefetch and the breaker that the application's handler has."""
    handler = app.handlers.get(load.queue)
    options: Any = getattr(handler, "options", None)
    return replace(
        load,
        concurrency=getattr(options, "concurrency", load.concurrency),
        prefetch=getattr(options, "prefetch", None),
        breaker=getattr(options, "breaker", None),
    )


def _only_queue(topology: Topology) -> str:
    queues = [plan.queue for plan in topology.plans]
    if len(queues) == 1:
        return queues[0]
    raise CommandFailed(
        f"expected --queue: {topology.name} has {len(queues) or 'no'} queues with a plan",
        do=f"Name one of {', '.join(queues)}, or give a --scenario file."
        if queues
        else "Definitions hold no plans: write a .toml file.",
        code=Exit.USAGE,
    )


def _rates(said: dict[str, Any]) -> tuple[RateStep, ...]:
    if said["profile"] is not None:
        from hopback.rehearse.scenario_file import read_profile

        try:
            return read_profile(_text(Path(said["profile"])))
        except ValueError as error:
            raise CommandFailed(
                f"{said['profile']}: {error}",
                do="Write rows like 0,500 and 3600,800.",
                code=Exit.USAGE,
            ) from error
    if said["rate"] is None:
        raise click.UsageError("expected --rate, --profile or --scenario: how many messages come?")
    return (RateStep(0.0, said["rate"]),)


def _read_file(path: Path, said: dict[str, Any]) -> Scenario:
    from hopback.rehearse.scenario_file import read_scenario

    alone = ("queue", "rate", "fail", "poison", "handler", "consumers", "length")
    given = [f"--{'for' if name == 'length' else name}" for name in alone if said[name] is not None]
    if given or said["outages"]:
        raise click.UsageError(f"{', '.join(given) or '--outage'}: the scenario file says that.")
    return read_scenario(
        _text(path), where=str(path), profile=lambda name: _text(path.parent / name)
    )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_LINES * 64).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(
            f"{path} cannot be read: {error}", do="Name a text file.", code=Exit.NOT_FOUND
        ) from error


@contextmanager
def _progress(engine: str) -> Iterator[Callable[[float], object] | None]:
    """A bar on stderr for the exact engine, if that is a terminal."""
    if engine != EngineKind.EXACT or not on_terminal(err=True):
        yield None
        return
    with click.progressbar(length=1000, label="rehearsing", file=sys.stderr) as bar:

        def tell(share: float) -> None:
            bar.update(max(0, round(share * 1000) - bar.pos))

        yield tell


def _advise(topology: Topology, scenario: Scenario, goals: Sequence[str], form: str) -> Exit:
    """The cheapest plans that meet the goals, as a table, and the best of them to be copied."""
    from hopback.rehearse import advise as advice

    try:
        wanted = [advice.parse_goal(goal) for goal in goals]
    except ValueError as error:
        raise click.UsageError(f"--advise: {error}.") from error
    if len(scenario.loads) != 1:
        raise click.UsageError(
            "--advise is for one queue: name --queue instead of a scenario of several."
        )
    found = advice.advise(topology, scenario, scenario.loads[0].queue, wanted)
    met = [one for one in found if one.met]
    columns = ("change", "plan", "dead letters", "recovery", "asked in vain", "deepest", "cost")
    rows = list(advice.table_rows(found))
    if form == "json":
        told = [dict(zip(columns, row, strict=True)) for row in rows]
        best = advice.decorator_line(met[0]) if met else None
        document(json_text({"goals": list(goals), "proposals": told, "best": best}))
        return Exit.OK if met else Exit.FAILED
    if form != "text":
        raise click.UsageError("--advise prints text or json.")
    table(columns, rows, right=columns[2:])
    gap()
    if not met:
        click.echo("Nothing that was tried meets all goals: ask for less, or for fewer at once.")
    elif not met[0].changes:
        click.echo("The plan of today meets them all.")
    else:
        click.echo(
            f"{safe(advice.decorator_line(met[0]))}\n\n{safe_lines(advice.toml_lines(met[0]))}",
            nl=False,
        )
    return Exit.OK if met else Exit.FAILED


# --- what is shown -------------------------------------------------------------------------------


def _print(forecast: Forecast, findings: Sequence[Finding], form: str) -> None:
    if form == "json":
        told = [
            {
                "rule": one.rule,
                "severity": str(one.severity),
                "place": one.place,
                "explanation": one.explanation,
                "fix": one.fix,
            }
            for one in findings
        ]
        document(json_text({**forecast_document(forecast), "findings": told}))
    elif form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(csv_rows(forecast))
        document(text.getvalue())
    else:
        _print_text(forecast, findings)


def _print_text(forecast: Forecast, findings: Sequence[Finding]) -> None:
    click.echo(safe(_title(forecast)))
    gap()
    _print_charts(forecast)
    rows = [
        (queue.queue, queue.role, show_count(queue.peak),
         show_seconds(forecast.times[queue.peak_place]), show_count(queue.depth[-1]))
        for queue in forecast.queues
    ]  # fmt: skip
    table(("queue", "role", "peak", "at", "end"), rows, right=("peak", "at", "end"))
    gap()
    for line in _sums(forecast):
        click.echo(safe(line))
    if findings:
        gap()
    for finding in findings:
        click.echo(safe(f"{finding.severity}: {finding.place} [{finding.rule}]"))
        for text in (finding.explanation, f"Fix: {finding.fix}"):
            click.echo(click.wrap_text(safe(text), 98, "  ", "  "))


def _title(forecast: Forecast) -> str:
    scenario = forecast.scenario
    outages = ", ".join(
        f"outage of {show_seconds(one.length_s)} at {show_seconds(one.start_s)}"
        for one in scenario.outages
    )
    loads = [f"{load.queue} {show_rate(load.top_rate)}" for load in scenario.loads]
    told = ", ".join(loads[:3]) + (f" and {len(loads) - 3} more" if len(loads) > 3 else "")
    trouble = f", {outages}" if outages else ""
    return (
        f"{forecast.topology} for {show_seconds(scenario.duration_s)}: {told}{trouble}"
        f" ({forecast.engine} engine)"
    )


def _print_charts(forecast: Forecast) -> None:
    """A chart for each queue that held anything, the fullest first."""
    from hopback.rehearse.braille import braille_chart

    full = sorted(forecast.queues, key=lambda queue: -queue.peak)
    for queue in [one for one in full if one.peak >= 1][:_MOST_CHARTS]:
        click.echo(safe(f"{queue.queue} up to {show_count(queue.peak)}"))
        for line in braille_chart(
            queue.depth, width=_CHART_WIDTH, height=_CHART_HEIGHT, top=queue.peak
        ):
            click.echo(line)
    if forecast.scenario.outages:
        click.echo(f"{_outage_line(forecast)}  outage")
    middle, end = show_seconds(forecast.times[-1] / 2), show_seconds(forecast.times[-1])
    click.echo(f"0s{middle.center(_CHART_WIDTH - 2 - len(end))}{end}")
    gap()


def _outage_line(forecast: Forecast) -> str:
    """A line below the charts, drawn where something is down."""
    length = forecast.scenario.duration_s / _CHART_WIDTH
    down = (
        any(one.start_s < (cell + 1) * length and one.end_s > cell * length
            for one in forecast.scenario.outages)
        for cell in range(_CHART_WIDTH)
    )  # fmt: skip
    return "".join("━" if one else "─" for one in down)


def _sums(forecast: Forecast) -> Iterator[str]:
    for course in forecast.stations:
        first = course.first_dead_letter_s
        since = "" if first is None else f", the first after {show_seconds(first)}"
        yield (
            f"{course.queue}: {show_count(course.published)} published, {show_count(course.run_count)}"
            f" runs, {show_count(course.retried)} retries, {show_count(course.done)} done,"
            f" {show_count(course.dead_letters)} dead letters{since}, {show_count(course.left)} left."
        )
    yield (
        f"Waiting messages take up to {show_bytes(max(forecast.memory))} of the broker's memory and"
        f" {show_bytes(max(forecast.disk))} of its disk."
    )
