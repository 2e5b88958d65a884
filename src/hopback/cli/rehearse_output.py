"""What `hopback rehearse` prints: text with charts, JSON, CSV, SVG, HTML, and advice as a table."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import Exit
from hopback.cli.terminal import document, gap, json_text, safe, safe_lines, table
from hopback.rehearse.forecast import csv_rows, forecast_document
from hopback.rehearse.page import html_page, title_of
from hopback.rehearse.quantities import show_bytes, show_count, show_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.rehearse.findings import TimedFinding
    from hopback.rehearse.forecast import Forecast
    from hopback.rehearse.scenario import Scenario
    from hopback.topology.model import Topology

__all__ = ["print_advice", "print_forecast"]

_CHART_HEIGHT = 3
"""Lines of a chart: six of them and the sums fit on one screen."""
_CHART_WIDTH = 72
"""Characters of a chart: a terminal has 80, and a word stands behind the line of outages."""
_MOST_CHARTS = 6
"""The fullest queues; the table below has them all."""


def print_forecast(forecast: Forecast, findings: Sequence[TimedFinding], form: str) -> None:
    """Print a forecast in one of the forms of `-o`."""
    if form == "json":
        told = [
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
        document(json_text({**forecast_document(forecast), "findings": told}))
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
        said = (
            f"{course.queue}: {show_count(course.published)} published, {show_count(course.run_count)}"
            f" runs, {show_count(course.retried)} retries, {show_count(course.done)} done,"
            f" {show_count(course.dead_letters)} dead letters{since}, {show_count(course.left)} left;"
            f" up to {show_count(course.most_retrying)} in retry at once, the oldest"
            f" {show_seconds(max(course.oldest_s))} old."
        )
        click.echo(safe(said))
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
    """A chart for each queue that held anything, the fullest first; below, when something is down."""
    from hopback.rehearse.braille import braille_chart

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
    """The cheapest plans that meet the goals, as a table, and the best of them to be copied."""
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
    columns = ("change", "plan", "dead letters", "recovery", "asked in vain", "deepest", "cost")
    rows = list(advice.table_rows(found))
    jitter = advice.jitter_note(scenario, wanted, found[0])
    if form == "json":
        told = [dict(zip(columns, row, strict=True)) for row in rows[: len(found)]]
        best = advice.decorator_line(met[0]) if met else None
        said = {"goals": list(goals), "proposals": told, "best": best}
        document(json_text({**said, "notOffered": {"jitter": jitter}}))
        return Exit.OK if met else Exit.FAILED
    table(columns, rows, right=columns[2:])
    gap()
    click.echo(safe(jitter))
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
