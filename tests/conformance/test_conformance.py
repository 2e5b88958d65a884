"""The conformance suite on the embedded broker and on RabbitMQ, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.version import BrokerVersion
from tests.conformance.subjects import Subjects, needs_expendable, play_embedded, play_served
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
    """Every row on one RabbitMQ; what wrecks its node runs in a worker of its own."""
    for row in _ROWS:
        group = pytest.mark.xdist_group(f"{suite}-{'wrecked' if needs_expendable(row) else 'kept'}")
        marks = [group] if suite == "host" else [group, pytest.mark.all_brokers]
        yield pytest.param(row, suite, marks=marks, id=f"{row.id}-{suite}")


@pytest.mark.parametrize("version", _VERSIONS, ids=str)
@pytest.mark.parametrize("row", _ROWS, ids=_number)
def test_the_embedded_broker_does_as_rabbitmq_does(
    row: Row, version: BrokerVersion, record_property: Callable[[str, object], None]
) -> None:
    """Each row holds on the embedded broker, or is a listed difference that is still one."""
    result = play_embedded(row, version)
    record_property("conformance", [row.id, f"embedded {version}", str(result.outcome)])
    assert judge(result, version) is None


@pytest.mark.socket
@pytest.mark.parametrize("version", _VERSIONS, ids=str)
@pytest.mark.parametrize("row", _ROWS, ids=_number)
async def test_the_broker_on_a_socket_does_as_rabbitmq_does(
    row: Row, version: BrokerVersion, record_property: Callable[[str, object], None]
) -> None:
    """Each row holds over the socket too, as it does in the process."""
    result = await play_served(row, version)
    record_property("conformance", [row.id, f"socket {version}", str(result.outcome)])
    assert judge(result, version) is None


@pytest.fixture(scope="session")
def subjects() -> Iterator[Subjects]:
    """RabbitMQ by the suite it comes from; each is started once, and all end with the session."""
    chosen = Subjects()
    yield chosen
    chosen.remove()


@pytest.mark.broker
@pytest.mark.parametrize(
    ("row", "suite"),
    [parameters for suite in ("host", *SUITES) for parameters in _real(suite)],
)
async def test_rabbitmq_does_as_the_row_says(
    row: Row, suite: str, subjects: Subjects, record_property: Callable[[str, object], None]
) -> None:
    """Each row holds on RabbitMQ itself: the suite tells the truth."""
    subject = subjects.get(suite)
    result = await subject.play(row)
    record_property("conformance", [row.id, f"RabbitMQ {subject.version}", str(result.outcome)])
    assert result.outcome in (Outcome.HOLDS, Outcome.SAYS_NOTHING), result.reason


def test_every_difference_is_about_a_row_that_exists() -> None:
    """A difference names its row and gives a reason."""
    known = {row.id for row in _ROWS}
    assert {each.row for each in EMBEDDED_DIFFERENCES} <= known
    assert all(each.reason for each in EMBEDDED_DIFFERENCES)
