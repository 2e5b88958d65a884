"""The table of results by broker and version, written by the test run."""

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
# Conformance of the embedded broker with RabbitMQ

Written by `make test-brokers`, do not edit. Each row states a fact about RabbitMQ. An experiment in
[`tests/conformance/suite`](../../tests/conformance/suite/) verifies it. The docstring of the suite, which is
in the repository and not in the package, shows how to run it against another broker. The embedded broker
has to pass the same rows with the profile of each version. *Socket* is the same broker as `hopback broker`.
Rows A.x describe plain AMQP 0-9-1. Rows W.x are visible only on the wire, so the broker in the process does
not run them.

✓ holds · – not applicable to this version or broker · ≠ known difference, see below · ✗ does not hold · ? not
run. *slow* rows take minutes on RabbitMQ, *destructive* rows damage their node, *policies* rows set
policies, *node* and *timeout* rows need control of the node, *socket* rows write raw frames.
"""
_SIGNS = {
    Outcome.HOLDS: "✓",
    Outcome.NOT_APPLICABLE: "–",
    Outcome.FAILS: "✗",
    Outcome.NOT_TESTED: "?",
}
_NOT_TESTED = """
## Not covered

Three situations need a cluster: dead letters that are lost while the target's node is down, confirms while
a quorum queue has no leader, and queues without a quorum. The embedded broker does not model them.
"""

_EMBEDDED = ("embedded", "socket")
"""The embedded broker in the process, and on a socket."""

Results = dict[tuple[str, str], str]


class ConformanceTable:
    """Collects the recorded results and writes the page after a run on all brokers."""

    def __init__(self) -> None:
        self.results: Results = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store a recorded result of any worker."""
        for name, value in report.user_properties:
            if name == "conformance" and report.when == "call":
                row, subject, outcome = map(str, cast("list[str]", value))
                self.results[row, subject] = outcome

    def pytest_sessionfinish(self) -> None:
        """Write the page if every row ran on every subject."""
        subjects = {subject for _, subject in self.results}
        if len(self.results) == len(rows()) * len(subjects) and len(subjects) >= 9:
            PAGE.parent.mkdir(parents=True, exist_ok=True)
            PAGE.write_text(render(self.results))


def render(results: Mapping[tuple[str, str], str]) -> str:
    """Return the page."""
    subjects = sorted({subject for _, subject in results}, key=_by_kind_and_version)
    lines = [_HEAD, _summary(results, subjects), _line("Row", "", *subjects)]
    lines.append(_line(*["---"] * (len(subjects) + 2)))
    lines.extend(_row_line(row, results, subjects) for row in rows())
    lines.append("\n## Known differences of the embedded broker\n")
    lines.extend(f"- {each.row}: {each.reason}" for each in EMBEDDED_DIFFERENCES)
    return "\n".join(lines) + "\n" + _NOT_TESTED


def _summary(results: Mapping[tuple[str, str], str], subjects: list[str]) -> str:
    held = sum(1 for outcome in results.values() if outcome == Outcome.HOLDS)
    return f"{len(rows())} rows on {len(subjects)} brokers: {held} hold.\n"


def _by_kind_and_version(subject: str) -> tuple[int, BrokerVersion]:
    kind, _, version = subject.partition(" ")
    order = _EMBEDDED.index(kind) if kind in _EMBEDDED else len(_EMBEDDED)
    return order, BrokerVersion.parse(version)


def _row_line(row: Row, results: Mapping[tuple[str, str], str], subjects: list[str]) -> str:
    signs = [_sign(row, subject, results.get((row.id, subject))) for subject in subjects]
    costs = ", ".join(f"*{tag}*" for tag in Tag if tag in row.tags)
    return _line(row.id, f"{row.title} {costs}".strip(), *signs)


def _sign(row: Row, subject: str, outcome: str | None) -> str:
    kind, _, version = subject.partition(" ")
    if outcome is None:
        return "?"
    known = [each for each in EMBEDDED_DIFFERENCES if kind in _EMBEDDED]
    if any(each.concerns(row.id, BrokerVersion.parse(version)) for each in known):
        return "≠"
    return _SIGNS[Outcome(outcome)]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
