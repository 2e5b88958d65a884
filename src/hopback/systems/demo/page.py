"""The page `/demo`. It shows the counters of the systems, guides the reader through an incident and
compares the systems in a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypedDict
from urllib.parse import quote

from jinja2 import Environment, Template
from markupsafe import Markup, escape

from hopback.runtime.depths import queues_to_watch
from hopback.systems.comparison import COMPARISON, HEADINGS
from hopback.topology import Topology

_SAMPLE = re.compile(r"^hopback_(deliveries_total|queue_depth)\{(.*)\} (\S+)$", re.MULTILINE)
_CODE = re.compile("`([^`]+)`")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNIT = re.compile(r"(?<=\d) (?=s\b|min\b)")
"""Matches a space between a number and its unit. The line must not break there."""


class Counters(TypedDict):
    """How many messages a system has received and handled, and how many are in its queues now."""

    came: int
    done: int
    retrying: int
    dead: int


@dataclass(frozen=True, slots=True)
class ShownSystem:
    """The parts of a system's description that the page shows."""

    name: str
    title: str
    url: str
    topologies: tuple[Topology, ...]
    tries: tuple[tuple[str, str], ...]
    """Pairs of a description and a shell command."""

    @property
    def main_queue(self) -> str:
        """The queue in the centre of the diagram."""
        return next(plan.queue for topology in self.topologies for plan in topology.plans)

    @property
    def dead_letter_queues(self) -> tuple[str, ...]:
        plans = (plan for topology in self.topologies for plan in topology.plans)
        return tuple(dict.fromkeys(plan.parking.queue for plan in plans))


def counters_of(systems: Iterable[ShownSystem], metrics: str) -> dict[str, Counters]:
    """Compute the counters of each system from the text that `/metrics` returns."""
    runs: dict[tuple[str, str], int] = {}
    depths: dict[str, int] = {}
    for kind, labels, value in _SAMPLE.findall(metrics):
        known, number = dict(_LABEL.findall(labels)), float(value)
        if kind == "queue_depth":
            depths[known["queue"]] = int(number) if number == number else 0
        else:
            runs[known["queue"], known["outcome"]] = int(number)
    found = {}
    for system in systems:
        queues = [
            one
            for topology in system.topologies
            for one in queues_to_watch(topology, [plan.queue for plan in topology.plans])
        ]
        own = {one.queue for one in queues if one.role == "main"}
        held = {
            role: sum(depths.get(one.queue, 0) for one in queues if one.role == role)
            for role in ("main", "retry", "dead-letter")
        }
        done = sum(runs.get((name, "done"), 0) for name in own)
        found[system.name] = Counters(
            came=done + sum(held.values()),
            done=done,
            retrying=held["retry"],
            dead=held["dead-letter"],
        )
    return found


_STEPS = (
    ("Break the warehouse", "closes Ratatoskr's warehouse and places five orders"),
    ("Watch", "each order fails and is retried three times, every 5 s, and is then a dead letter"),
    (
        "Look at the dead letters",
        "opens their queue with the reason, the timeline and all attempts",
    ),
    ("Repair the warehouse", "opens the warehouse. The dead letters stay in their queue"),
    ("Re-drive", "sends back only the messages that failed because of the warehouse"),
)
_COUNTERS = {"came": "in", "done": "done", "retrying": "retrying", "dead": "dead"}
"""The labels of the counters."""


def front_page(systems: Sequence[ShownSystem], guide: str) -> str:
    """Render the page. Its script requests the counters every second."""
    names = {system.name for system in systems}
    shop = next((one for one in systems if one.name == "ratatoskr"), None)
    return _template().render(
        systems=systems,
        counters=_COUNTERS,
        shop=shop and _shop(shop),
        steps=_STEPS,
        headings=HEADINGS,
        rows=[one.cells() for one in COMPARISON if one.name in names],
        guide=guide,
        style=_read("page.css"),
        script=_read("page.js"),
    )


def _shop(system: ShownSystem) -> dict[str, str]:
    """Return the addresses that the script of the incident needs."""
    queue = system.dead_letter_queues[0]
    return {"url": system.url, "queue": queue, "page": f"/queues/{_path(queue)}"}


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(marked=_marked, path=_path)
    return environment.from_string(_read("page.html"))


def _read(name: str) -> str:
    return files("hopback.systems.demo").joinpath(name).read_text(encoding="utf-8")


def _marked(text: str) -> Markup:
    """Convert backticks to `<code>` elements and prevent line breaks between numbers and units."""
    escaped = str(escape(_UNIT.sub("\N{NO-BREAK SPACE}", text)))
    return Markup(_CODE.sub(r"<code>\1</code>", escaped))  # noqa: S704 - the text is escaped


def _path(queue: str) -> str:
    return quote(queue, safe="")
