"""The conformance suite on the embedded broker and on RabbitMQ, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.version import BrokerVersion
from tests.conformance.subjects import Subjects, needs_expendable, run_embedded, run_on_socket
from tests.conformance.suite import Outcome, Row, rows
from tests.conformance.suite.exercise import EMBEDDED_DIFFERENCES, judge
from tests.harness.versions import SUITES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _pytest.mark.structures import ParameterSet

_ROWS = rows()
_VERSIONS = tuple(map(BrokerVersion.parse, ("3.10", "4.0", "4.3")))


def _number(row: object) -> str:
    return row.id if isinstance(row, Row) else str(row)


def _real(suite: str) -> Iterator[ParameterSet]:
    """Yield every row for one RabbitMQ. Destructive rows have a separate worker."""
    for row in _ROWS:
        group = pytest.mark.xdist_group(f"{suite}-{'wrecked' if needs_expendable(row) else 'kept'}")
        marks = [group] if suite == "host" else [group, pytest.mark.all_brokers]
        yield pytest.param(row, suite, marks=marks, id=f"{row.id}-{suite}")


@pytest.mark.parametrize("version", _VERSIONS, ids=str)
@pytest.mark.parametrize("row", _ROWS, ids=_number)
def test_embedded_broker_matches_rabbitmq(
    row: Row, version: BrokerVersion, record_property: Callable[[str, object], None]
) -> None:
    """Each row holds, or is listed as a difference and fails."""
    result = run_embedded(row, version)
    record_property("conformance", [row.id, f"embedded {version}", str(result.outcome)])
    assert judge(result, version) is None


@pytest.mark.socket
@pytest.mark.parametrize("version", _VERSIONS, ids=str)
@pytest.mark.parametrize("row", _ROWS, ids=_number)
async def test_embedded_broker_on_a_socket_matches_rabbitmq(
    row: Row, version: BrokerVersion, record_property: Callable[[str, object], None]
) -> None:
    result = await run_on_socket(row, version)
    record_property("conformance", [row.id, f"socket {version}", str(result.outcome)])
    assert judge(result, version) is None


@pytest.fixture(scope="session")
def subjects() -> Iterator[Subjects]:
    """RabbitMQ by suite. Each is started once and removed at the end of the session."""
    subjects_ = Subjects()
    yield subjects_
    subjects_.remove()


@pytest.mark.broker
@pytest.mark.parametrize(
    ("row", "suite"),
    [parameters for suite in ("host", *SUITES) for parameters in _real(suite)],
)
async def test_row_holds_on_rabbitmq(
    row: Row, suite: str, subjects: Subjects, record_property: Callable[[str, object], None]
) -> None:
    subject = subjects.get(suite)
    result = await subject.run_row(row)
    record_property("conformance", [row.id, f"RabbitMQ {subject.version}", str(result.outcome)])
    assert result.outcome in (Outcome.HOLDS, Outcome.NOT_APPLICABLE), result.reason


def test_every_difference_names_an_existing_row_and_a_reason() -> None:
    known = {row.id for row in _ROWS}
    assert {each.row for each in EMBEDDED_DIFFERENCES} <= known
    assert all(each.reason for each in EMBEDDED_DIFFERENCES)
