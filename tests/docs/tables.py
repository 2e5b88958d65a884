"""Tables of the reference that are generated from the code.

`python -m tests.docs.tables` writes them into their pages, between `<!-- table: NAME -->` and
`<!-- end -->`. A test fails if a page differs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from hopback.cli.run import run
from hopback.observe.events import EVENTS
from hopback.observe.logs import LEVELS
from hopback.observe.metrics import Metrics
from hopback.ops.cli.dlq import ls
from hopback.ops.cli.serve import serve
from hopback.ops.contract.options import options_of
from hopback.ops.contract.requests import DiscardRequest, RedriveRequest
from hopback.ops.http.app import ENDPOINTS
from hopback.ops.http.brokers import BROKERS
from hopback.systems.comparison import COMPARISON, HEADINGS, Compared
from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["TABLES", "read_page", "render_page"]

_MARKED = r"(<!-- table: {} -->\n).*?(<!-- end -->)"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_OF_MESSAGE = EVENTS["delivery.done"].fields[:-1]
"""Fields that describe the message. The page lists them once, as *message*."""


def _events() -> str:
    """Return every event with its level, condition and fields."""
    rows = [
        (f"`{one.name}`", LEVELS.get(one.name, "info"), one.when, _event_fields(one.fields))
        for one in EVENTS.values()
    ]
    return _table(("event", "level", "when", "fields"), rows)


def _event_fields(fields: tuple[str, ...]) -> str:
    size = len(_OF_MESSAGE)
    if fields[:size] == _OF_MESSAGE:
        return ", ".join(("*message*", *map("`{}`".format, fields[size:])))
    return _code(fields)


def _metrics() -> str:
    """Return every metric under its name in Prometheus."""
    metrics = Metrics()
    kinds = (
        ("counter", "_total", metrics._counters),
        ("histogram", "", metrics._histograms),
        ("gauge", "", metrics._gauges),
    )
    rows = [
        (f"`{one._name}{ending}`", kind, _code(one._labelnames), one._documentation)
        for kind, ending, found in kinds
        for one in found.values()
    ]
    return _table(("metric", "kind", "labels", "meaning"), rows)


def _endpoints() -> str:
    """Return every endpoint with its required role."""
    rows = [
        (
            f"`{row.method} {row.path}`",
            "public" if row.public else "any" if row.role is None else row.role.value,
            row.summary,
        )
        for row in (*ENDPOINTS, *BROKERS)
    ]
    return _table(("endpoint", "role", "purpose"), rows)


def _job_options() -> str:
    """Return every option of a re-drive or a discard with its names in the command and in the API."""
    options = {
        one.flag: one for kind in (RedriveRequest, DiscardRequest) for one in options_of(kind)
    }
    rows = [
        (
            f"`{one.flag} {one.metavar}`".replace(" `", "`"),
            f"`{one.owner}.{one.json}`".replace("`.", "`"),
            f"{one.default:,}" if one.kind is int and one.default is not None else "",
            one.bounds_text.removeprefix("a number "),
            one.text,
        )
        for one in options.values()
    ]
    return _table(("command", "API", "default", "allowed", "meaning"), rows)


def _command_options(command: click.Command, other: click.Command | None = None) -> str:
    """Return the options of a command with environment variable and default, without those of `other`."""
    context = click.Context(command)
    shared = {(one.opts[0], one.help) for one in _options(other)} if other else set()
    rows = []
    for one in _options(command):
        if (one.opts[0], one.help) not in shared:
            metavar = "" if one.is_flag else f" {one.make_metavar(context)}"
            default = one.to_info_dict()["default"]
            shown = f"`{default}`" if default and not one.is_flag else ""
            name = f"`{one.opts[0]}{metavar}`".replace("|", "\\|")
            rows.append((name, f"`{one.envvar}`", shown, one.help or ""))
    return _table(("option", "environment", "default", "meaning"), rows)


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def _systems(folder: str) -> str:
    """Return every documented system with its failure handling. `folder` is the path to the systems."""
    rows = []
    for name, *cells in map(Compared.cells, COMPARISON):
        home = name.replace("-", "_")
        rows.append((f"[`{name}`]({folder}{home}/README.md)", *cells))
    return _table(HEADINGS, rows)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "endpoints": ("docs/reference/http-api.md", _endpoints),
    "events": ("docs/reference/events.md", _events),
    "job options": ("docs/reference/command.md", _job_options),
    "run options": ("docs/reference/command.md", lambda: _command_options(run)),
    "serve options": ("docs/reference/command.md", lambda: _command_options(serve, ls)),
    "metrics": ("docs/reference/metrics.md", _metrics),
    "compared systems": (
        "docs/tutorial/run-the-systems.md",
        lambda: _systems("../../src/hopback/systems/"),
    ),
    "systems": ("src/hopback/systems/README.md", lambda: _systems("")),
}
"""The page of each table and the function that renders it."""


def read_page(name: str) -> str:
    return (ROOT / TABLES[name][0]).read_text(encoding="utf-8")


def render_page(name: str) -> str:
    """Return the page with the current table."""
    table = TABLES[name][1]()
    pattern = re.compile(_MARKED.format(name), re.DOTALL)
    text, count = pattern.subn(lambda found: found[1] + table + found[2], read_page(name))
    assert count == 1, f"{TABLES[name][0]} has no markers for the table {name}"
    return text


if __name__ == "__main__":
    for _name, (_page, _) in TABLES.items():
        (ROOT / _page).write_text(render_page(_name), encoding="utf-8")
