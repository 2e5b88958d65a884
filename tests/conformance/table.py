"""The table of results per broker and version, written by the run that found them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from hopback.version import BrokerVersion
from tests.conformance.suite import Outcome, Tag, rows
from tests.conformance.suite.exercise import EMBEDDED_DIFFERENCES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from tests.conformance.suite import Row

__all__ = ["PAGE", "ConformanceTable", "render"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"

_HEAD = """\
# Conformance: what RabbitMQ does, row by row

Written by `make test-brokers`; do not edit. Each row is a sentence about RabbitMQ with an experiment
that shows it ([`tests/conformance/suite`](../../tests/conformance/suite/)). The suite is part of the
repository and not of the package. Its docstring shows how to run it against another broker. The embedded
broker plays each version of RabbitMQ and is held to the same rows as RabbitMQ itself; what differs
between versions is part of the row. *Socket* is the same broker as `hopback broker`. Rows A.x are plain
AMQP 0-9-1 as RabbitMQ speaks it, rows W.x what one sees only on the wire, so they are not about the
broker in the process.

✓ holds · – the row is not about this version or broker · ≠ known difference, see below · ✗ does not hold ·
? not played. Costs: *slow* rows take minutes on a broker with RabbitMQ's own timings, *destructive*
ones wreck the node they run on, *policies* set policies, *node* and *timeout* need a node in hand,
*socket* rows write frames of their own.
"""
_SIGNS = {
    Outcome.HOLDS: "✓",
    Outcome.SAYS_NOTHING: "–",
    Outcome.FAILS: "✗",
    Outcome.NOT_SHOWN: "?",
}
_NOT_SHOWN = """
## What the rows do not show

Three things of RabbitMQ need a cluster, which one node cannot be: dead letters lost while the target's
node is down, confirms while a quorum queue has no leader, and queues without a quorum. Neither can the
embedded broker show them.
"""

_OURS = ("embedded", "socket")
"""The embedded broker in the process, and on a socket."""

Results = dict[tuple[str, str], str]


class ConformanceTable:
    """Gathers what the tests recorded, and writes the page when all brokers were played."""

    def __init__(self) -> None:
        self.results: Results = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test recorded, whichever worker ran it."""
        for name, value in report.user_properties:
            if name == "conformance" and report.when == "call":
                row, subject, outcome = map(str, cast("list[str]", value))
                self.results[row, subject] = outcome

    def pytest_sessionfinish(self) -> None:
        """Write the page if every row was played on every subject."""
        subjects = {subject for _, subject in self.results}
        if len(self.results) == len(rows()) * len(subjects) and len(subjects) >= 9:
            PAGE.parent.mkdir(parents=True, exist_ok=True)
            PAGE.write_text(render(self.results))


def render(results: Mapping[tuple[str, str], str]) -> str:
    """The page."""
    subjects = sorted({subject for _, subject in results}, key=_by_kind_and_version)
    lines = [_HEAD, _summary(results, subjects), _line("Row", "", *subjects)]
    lines.append(_line(*["---"] * (len(subjects) + 2)))
    lines.extend(_row_line(row, results, subjects) for row in rows())
    lines.append("\n## Known differences of the embedded broker\n")
    lines.extend(f"- {each.row}: {each.reason}" for each in EMBEDDED_DIFFERENCES)
    return "\n".join(lines) + "\n" + _NOT_SHOWN


def _summary(results: Mapping[tuple[str, str], str], subjects: list[str]) -> str:
    held = sum(1 for outcome in results.values() if outcome == Outcome.HOLDS)
    return f"{len(rows())} rows on {len(subjects)} brokers: {held} hold.\n"


def _by_kind_and_version(subject: str) -> tuple[int, BrokerVersion]:
    kind, _, version = subject.partition(" ")
    order = _OURS.index(kind) if kind in _OURS else len(_OURS)
    return order, BrokerVersion.parse(version)


def _row_line(row: Row, results: Mapping[tuple[str, str], str], subjects: list[str]) -> str:
    signs = [_sign(row, subject, results.get((row.id, subject))) for subject in subjects]
    costs = ", ".join(f"*{tag}*" for tag in Tag if tag in row.tags)
    return _line(row.id, f"{row.title} {costs}".strip(), *signs)


def _sign(row: Row, subject: str, outcome: str | None) -> str:
    kind, _, version = subject.partition(" ")
    if outcome is None:
        return "?"
    known = [each for each in EMBEDDED_DIFFERENCES if kind in _OURS]
    if any(each.concerns(row.id, BrokerVersion.parse(version)) for each in known):
        return "≠"
    return _SIGNS[Outcome(outcome)]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
