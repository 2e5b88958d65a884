"""Render a rehearsal as an HTML file.

The file has no scripts or external resources. Its content security policy does not allow them
either.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import TYPE_CHECKING

from hopback.rehearse.chart import chart_css, charts_of, page_css, svg_chart
from hopback.rehearse.findings import TimedFinding, load_while_down
from hopback.rehearse.quantities import show_bytes, show_count, show_rate, show_seconds
from hopback.text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.rehearse.forecast import Forecast

_MOST_NAMED = 3
"""Maximum number of queues in a title. All of them are listed in tables."""


def title_of(forecast: Forecast) -> str:
    """Describe the rehearsal in one line."""
    scenario = forecast.scenario
    outages = "".join(
        f", outage of {show_seconds(one.length_s)} at {show_seconds(one.start_s)}"
        for one in scenario.outages
    )
    loads = [f"{load.queue} {show_rate(load.top_rate)}" for load in scenario.loads]
    more = f" and {len(loads) - _MOST_NAMED} more" if len(loads) > _MOST_NAMED else ""
    return (
        f"{forecast.topology} for {show_seconds(scenario.duration_s)}: {', '.join(loads[:_MOST_NAMED])}"
        f"{more}{outages} ({forecast.engine} engine)"
    )


def facts_of(forecast: Forecast) -> tuple[tuple[str, str], ...]:
    """Return the labels and values of the main results."""
    first, recovery = forecast.first_dead_letter_s, forecast.recovery_s
    deepest = max(forecast.queues, key=lambda one: one.peak)
    hits = [load_while_down(forecast, course) for course in forecast.stations]
    asked, peak = sum(hit for hit, _ in hits), max(rate for _, rate in hits)
    together = max(map(sum, zip(*(one.retrying for one in forecast.stations), strict=True)))
    retrying = max(together, *(one.most_retrying for one in forecast.stations))
    return (
        ("Dead letters", show_count(forecast.dead_letters)),
        ("First dead letter after", "never" if first is None else show_seconds(first)),
        ("Time to recover", "not yet" if recovery is None else show_seconds(recovery)),
        ("Deepest queue", f"{show_count(deepest.peak)} in {deepest.queue}"),
        ("Waiting for a retry, at most", show_count(retrying)),
        ("Oldest message", show_seconds(max(max(one.oldest_s) for one in forecast.stations))),
        ("Calls during outages", f"{show_count(asked)}, up to {show_rate(peak)}"),
        ("Returning, at most", show_rate(max(max(one.returns) for one in forecast.stations))),
        ("Memory of waiting messages", show_bytes(max(forecast.memory))),
        ("Disk of waiting messages", show_bytes(max(forecast.disk))),
    )  # fmt: skip


def html_page(forecast: Forecast, findings: Sequence[TimedFinding]) -> str:
    """Render the page."""
    style = page_css() + chart_css()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    title = _text(title_of(forecast))
    facts = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>"
        for name, value in facts_of(forecast)
    )
    listed = "".join(
        f'<li><p><span class="severity severity-{one.severity}">{one.severity}</span>'
        f' <span class="name">{_text(one.place)}</span> <span class="quiet">{_text(one.rule)}</span></p>'
        f"<p>{_text(one.explanation)}</p><p><b>Remedy:</b> {_text(one.fix)}</p></li>"
        for one in findings
    )
    charts = "".join(
        f"<figure>{svg_chart(chart)}</figure>" for chart in charts_of(forecast, findings)
    )
    queues = [
        (one.queue, one.role, one.type, show_count(one.peak),
         show_seconds(one.peak_s), show_count(one.depth[-1]))
        for one in forecast.queues
    ]  # fmt: skip
    counts = (
        "published",
        "runs",
        "retries",
        "done",
        "dead letters",
        "re-driven",
        "refused",
        "left",
    )
    stations = [
        (one.queue, *map(show_count, (one.published, one.run_count, one.retried, one.done,
                                      one.dead_letters, one.redriven, one.refused, one.left)))
        for one in forecast.stations
    ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{title}</title>\n<style>{style}</style>\n'
        f"</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f'<p class="quiet">Rehearsed by Hopback on RabbitMQ {forecast.scenario.version},'
        f" seed {forecast.scenario.seed}. Outages are shaded. Numbers in charts refer to findings.</p>\n"
        f'<dl class="facts">{facts}</dl>\n'
        f'<h2>Findings</h2>\n<ol class="findings">{listed}</ol>\n'
        f'<h2>Over time</h2>\n<div class="charts">{charts}</div>\n'
        f"<h2>Queues</h2>\n{_table(('queue', 'role', 'type'), ('peak', 'at', 'end'), queues)}\n"
        f"<h2>Messages</h2>\n{_table(('queue',), counts, stations)}\n"
        "</main>\n</body>\n</html>\n"
    )


def _table(names: Sequence[str], numbers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{one}</th>' for one in names)
    head += "".join(f'<th scope="col" class="num">{one}</th>' for one in numbers)
    body = "".join(
        "<tr>"
        + f'<th scope="row" class="name">{_text(row[0])}</th>'
        + "".join(f"<td>{_text(cell)}</td>" for cell in row[1 : len(names)])
        + "".join(f'<td class="num">{cell}</td>' for cell in row[len(names) :])
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(text: str) -> str:
    return escape(visible(text))
