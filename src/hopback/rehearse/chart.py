"""Render charts as SVG.

They show curves over time, with outages and findings. The SVG only contains CSS classes, so colours
are defined by a style sheet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from hopback.rehearse.quantities import show_bytes, show_count, show_rate, show_seconds
from hopback.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hopback.rehearse.findings import TimedFinding
    from hopback.rehearse.forecast import Forecast
    from hopback.rehearse.scenario import Outage

# Sizes in SVG units. The page scales the chart to its width.
_WIDTH, _HEIGHT = 640, 168
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 10, 38, 22
"""Margins for the axis labels, the last time, the title with the key, and the times."""
_GAP, _HEAD = 8, 34
"""The gap between charts, and the space for the title above the first ones."""
_KEY_LINE = 30
"""The vertical position of the key below the title."""
_NUMBER = 6.2
"""The approximate width of a character. SVG cannot measure text without a script."""
_LABELS = 8
"""Maximum number of labels on the time axis. They would overlap if there were more."""
_MOST_QUEUES = 12
"""Maximum number of queues to draw. Queues with the most messages are selected, a table lists all
of them.
"""
_TIME_STEPS_S = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14_400,
    21_600,
    43_200,
)
"""Round intervals for time labels in seconds. Whole days are used for longer ones."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A curve with its name and its values at the sample times."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves that share an axis. If `filled` is True, the area below the first one is filled.
    `show` formats labels.
    """

    title: str
    lines: tuple[ChartLine, ...]
    show: Callable[[float], str]
    times: Sequence[float]
    outages: tuple[Outage, ...] = ()
    marks: tuple[tuple[float, int], ...] = ()
    """The times and numbers of findings."""
    filled: bool = False

    @property
    def top(self) -> float:
        """The value at the top of the axis. It is round and larger than all values."""
        most = max((max(line.values) for line in self.lines), default=0.0)
        if self.show is show_seconds:
            return float(next((step for step in _TIME_STEPS_S if step >= most), _days(most)))
        base = 1024.0 if self.show is show_bytes else 10.0
        if most <= 0:
            return 1.0
        unit = base ** math.floor(math.log(most, base))
        steps = (
            (1, 2, 4, 5, 10, 20, 50, 100, 200, 500, 1024) if base > 10 else (1, 1.5, 2, 3, 5, 7, 10)
        )
        return unit * next(step for step in steps if step * unit >= most * 0.9999)


@cache
def chart_css() -> str:
    """The CSS rules of a chart. Colours are variables that are defined in `colors.css`."""
    return files("hopback.rehearse").joinpath("static/chart.css").read_text(encoding="utf-8")


@cache
def page_css() -> str:
    """The light and dark colours of all pages, and the CSS rules for a rehearsal."""
    folder = files("hopback.rehearse")
    parts = (folder.joinpath("static/colors.css"), folder.joinpath("page.css"))
    return "".join(part.read_text(encoding="utf-8") for part in parts)


def charts_of(forecast: Forecast, findings: Sequence[TimedFinding] = ()) -> tuple[Chart, ...]:
    """Create the charts: rates and ages of all stations, the depths of queues that were not empty,
    memory and disk.
    """
    times, charts = forecast.times, []
    numbered = [(one, number) for number, one in enumerate(findings, 1) if one.at_s is not None]
    for course in forecast.stations:
        outages = course.station.outages
        marks = tuple((one.at_s or 0.0, n) for one, n in numbered if one.place == course.queue)
        rates = (
            ChartLine("published", course.arrivals),
            ChartLine("returning", course.returns),
            ChartLine("failing", course.failures),
            ChartLine("capacity", course.capacity),
        )
        title = f"{course.queue}: messages per second"
        charts.append(Chart(title, rates, show_rate, times, outages, marks))
        ages = (
            ChartLine("oldest of all", course.oldest_s),
            ChartLine("head of the queue", course.wait_s),
        )
        charts.append(Chart(f"{course.queue}: age", ages, show_seconds, times, outages))
    full = sorted((one for one in forecast.queues if one.peak >= 1), key=lambda one: -one.peak)
    for queue in full[:_MOST_QUEUES]:
        owners = [
            course.station.outages
            for course in forecast.stations
            if queue.queue in {course.queue, course.station.plan.parking.queue}
            or any(queue.queue == wait.queue for wait in course.station.waits)
        ]
        charts.append(
            Chart(
                f"{queue.queue}: messages, up to {show_count(queue.peak)}",
                (ChartLine("", queue.depth),),
                show_count,
                times,
                tuple(dict.fromkeys(outage for owner in owners for outage in owner)),
                filled=True,
            )
        )
    marks = tuple((one.at_s or 0.0, number) for one, number in numbered if one.place == "broker")
    broker = (ChartLine("memory", forecast.memory), ChartLine("disk", forecast.disk))
    outages = forecast.scenario.outages
    charts.append(Chart("waiting messages: bytes", broker, show_bytes, times, outages, marks))
    return tuple(charts)


def svg_chart(chart: Chart) -> str:
    """Render a chart as an SVG element. The page has to include `chart_css`."""
    name = escape(visible(chart.title))
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">'
        f"{_drawn(chart)}</svg>"
    )


def svg_document(title: str, charts: Sequence[Chart]) -> str:
    """Render all charts as a single SVG file with its own style sheet. There are two charts per
    row.
    """
    columns = min(2, len(charts))
    width = columns * (_WIDTH + _GAP) - _GAP
    height = _HEAD + math.ceil(len(charts) / columns) * (_HEIGHT + _GAP)
    drawn = "".join(
        f'<g transform="translate({place % columns * (_WIDTH + _GAP)}'
        f' {_HEAD + place // columns * (_HEIGHT + _GAP)})">{_drawn(chart)}</g>'
        for place, chart in enumerate(charts)
    )
    said = escape(visible(title))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img" aria-label="{said}">'
        f"<style>{page_css()}{chart_css()}</style>"
        f'<rect class="paper" width="{width}" height="{height}"/>'
        f'<text class="title" x="8" y="22">{said}</text>{drawn}</svg>\n'
    )


def _drawn(chart: Chart) -> str:
    length, top = chart.times[-1] or 1.0, chart.top
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(moment: float) -> float:
        return round(_LEFT + wide * min(moment, length) / length, 1)

    def y(value: float) -> float:
        return round(_TOP + high * (1 - min(value, top) / top), 1)

    parts = [f'<text class="title" x="8" y="14">{escape(visible(chart.title))}</text>']
    for outage in chart.outages:
        begin, end = x(outage.start_s), x(outage.end_s)
        parts.append(
            f'<rect class="down" x="{begin}" y="{_TOP}" width="{max(1.0, end - begin):.1f}" height="{high}">'
            f"<title>outage</title></rect>"
        )
    for share in (0.0, 0.5, 1.0):
        at = y(top * share)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>'
        )
        label = chart.show(top * share) if share else "0"
        parts.append(f'<text text-anchor="end" x="{_LEFT - 6}" y="{at + 4:.1f}">{label}</text>')
    step = next((one for one in _TIME_STEPS_S if length / one <= _LABELS), _days(length / _LABELS))
    for number in range(int(length / step) + 1):
        at = x(number * step)
        anchor = "start" if number == 0 else "end" if at > _WIDTH - 30 else "middle"
        label = show_seconds(number * step) if number else "0"
        parts.append(f'<text text-anchor="{anchor}" x="{at}" y="{_HEIGHT - 6}">{label}</text>')
    key = float(_LEFT)
    for line, kind in zip(chart.lines, ("one", "two", "three", "four"), strict=False):
        points = " ".join(f"{x(t)},{y(v)}" for t, v in zip(chart.times, line.values, strict=True))
        if chart.filled and kind == "one":
            floor = f"{x(length)},{y(0)} {x(0)},{y(0)}"
            parts.append(f'<polygon class="area" points="{points} {floor}"/>')
        parts.append(f'<polyline class="{kind}" points="{points}"/>')
        if line.name:
            parts.append(
                f'<text class="key-{kind}" x="{key:.0f}" y="{_KEY_LINE}">— {line.name}</text>'
            )
            key += (len(line.name) + 5) * _NUMBER
    for moment, number in chart.marks:
        at = x(moment)
        parts.append(
            f'<line class="mark" x1="{at}" x2="{at}" y1="{_TOP}" y2="{_TOP + high}"/>'
            f'<circle class="back" cx="{at}" cy="{_TOP + 4 + 15 * ((number - 1) % 6)}" r="7"/>'
            f'<text class="number" text-anchor="middle" x="{at}" y="{_TOP + 8 + 15 * ((number - 1) % 6)}">'
            f"{number}</text>"
        )
    return "".join(parts)


def _days(seconds: float) -> float:
    return math.ceil(seconds / 86_400) * 86_400.0


_BASE = 0x2800  # a braille character that has no dots
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot in a braille character, by row and column."""


def braille_chart(values: Sequence[float], *, width: int, height: int, top: float) -> list[str]:
    """Draw the area below a curve with braille characters. `top` is the maximum value."""
    columns, rows = width * 2, height * 4
    cells = [[0] * width for _ in range(height)]
    for column in range(columns):
        # Use the maximum of each column, so that peaks are always visible.
        begin = column * len(values) // columns
        end = max(begin + 1, (column + 1) * len(values) // columns)
        value = max(values[begin:end])
        filled = 0 if top <= 0 else round(value / top * rows)
        if value > 0:
            filled = max(1, filled)  # draw at least one dot if the value is not zero
        for dot in range(min(filled, rows)):
            row = rows - 1 - dot
            cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    return ["".join(chr(_BASE + cell) for cell in line) for line in cells]
