"""Tests of the suite: wrong brokers fail, and lists and tables are up to date."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hopback.broker.embedded import EmbeddedBroker, run_virtual
from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import BrokerServer, ServerSettings
from hopback.broker.server.settings import ServerLimits
from hopback.version import BrokerVersion
from tests.conformance.suite import (
    Facilities,
    Outcome,
    Result,
    Row,
    Tag,
    exercise,
    rows,
    run_row,
)
from tests.conformance.suite.exercise import EMBEDDED_DIFFERENCES, judge
from tests.conformance.suite.row import row as enter
from tests.conformance.table import PAGE, render
from tests.conformance.wrong_brokers import WRONGS, Liar, WrongBroker

_ROWS = {row.id: row for row in rows()}
_V3_10, _V4_0, _V4_3 = map(BrokerVersion.parse, ("3.10", "4.0", "4.3"))


def _exercise(broker: Any, numbers: set[str]) -> dict[str, Outcome]:
    async def run_row() -> tuple[Result, ...]:
        loop = asyncio.get_running_loop()
        facilities = Facilities(now=loop.time, wall=loop.time)
        chosen = [_ROWS[number] for number in sorted(numbers)]
        return await exercise(broker, facilities, only=chosen)

    return {result.row.id: result.outcome for result in run_virtual(run_row())}


@pytest.mark.parametrize("wrong", WRONGS, ids=lambda kind: kind.__name__.strip("_"))
def test_broker_with_one_error_fails(wrong: type[Any]) -> None:
    """All rows that must detect the error fail."""
    outcomes = _exercise(WrongBroker(EmbeddedBroker(version=_V4_3), wrong), WRONGS[wrong])
    assert outcomes == dict.fromkeys(WRONGS[wrong], Outcome.FAILS)


@pytest.mark.parametrize(
    ("real", "claimed", "numbers"),
    [
        (_V4_0, _V3_10, {"1.4", "1.8", "1.9c", "2.1", "2.3b", "2.4", "5.1", "5.2a", "7.2b", "7.4a"}),
        (_V3_10, _V4_0, {"1.4", "1.5a", "1.8", "1.9c", "2.1", "2.3b", "5.1", "5.2a", "7.2b", "10.3b"}),
        (_V4_0, _V4_3, {"5.2b", "5.2d", "5.3a", "5.3d", "5.6", "5.12a", "5.13a", "7.4a", "9.10a"}),
        (_V4_3, _V4_0, {"5.2b", "5.2d", "5.3a", "5.3d", "5.12d", "5.13a", "7.4a", "9.10a"}),
    ],
)  # fmt: skip
def test_broker_of_another_version_fails(
    real: BrokerVersion, claimed: BrokerVersion, numbers: set[str]
) -> None:
    outcomes = _exercise(Liar(EmbeddedBroker(version=real), claimed), numbers)
    assert outcomes == dict.fromkeys(numbers, Outcome.FAILS)


@pytest.mark.socket
@pytest.mark.parametrize("number", ["W.5", "W.6"])
async def test_server_with_other_limits_fails(number: str) -> None:
    limits = ServerLimits(channels=100, frame_max=65_536)
    async with BrokerServer(ServerSettings(port=0, http_port=None, limits=limits)) as server:
        result = await run_row(_ROWS[number], RabbitMQ(server.url), Facilities(address=server.url))
    assert result.outcome is Outcome.FAILS


def test_costly_rows_do_not_run_by_default() -> None:
    costly = {row.id for row in rows() if row.tags & {Tag.SLOW, Tag.DESTRUCTIVE}}
    assert costly
    assert _exercise(EmbeddedBroker(), costly) == {}


def test_row_without_its_facility_is_not_tested() -> None:
    """Here rows that set policies or need a socket."""
    assert _exercise(EmbeddedBroker(), {"6.3a"}) == {"6.3a": Outcome.NOT_TESTED}
    assert _exercise(EmbeddedBroker(), {"W.1"}) == {"W.1": Outcome.NOT_TESTED}


def test_rows_are_ordered_and_numbers_are_unique() -> None:
    """1.10 follows 1.9."""
    numbers = [row.id for row in rows()]
    assert numbers.index("1.10a") > numbers.index("1.9a")
    assert numbers.index("A.1") > numbers.index("10.8")
    with pytest.raises(ValueError, match=r"expected a new row number, got 1\.4"):
        enter("1.4", "Again")(rows()[0].experiment)


@pytest.mark.parametrize("outcome", [Outcome.HOLDS, Outcome.FAILS])
def test_failure_must_be_listed_and_listed_row_must_fail(outcome: Outcome) -> None:
    listed = EMBEDDED_DIFFERENCES[0].row
    plain = next(number for number in _ROWS if number != listed)
    verdicts = [judge(_result(number, outcome), _V4_0) for number in (plain, listed)]
    expected = [outcome is Outcome.HOLDS, outcome is Outcome.FAILS]
    assert [verdict is None for verdict in verdicts] == expected


def _result(number: str, outcome: Outcome) -> Result:
    return Result(_ROWS[number], outcome, "as found")


def test_table_of_the_page_has_every_row_and_difference() -> None:
    """`make test-brokers` writes the page."""
    lines = PAGE.read_text().splitlines()
    for row in rows():
        assert any(line.startswith(f"| {row.id} | {row.title}") for line in lines), row.id
    for difference in EMBEDDED_DIFFERENCES:
        assert f"- {difference.row}: {difference.reason}" in lines
    assert not [line for line in lines if "✗" in line.partition(" | ")[2] and line[0] == "|"]


def test_table_has_the_sign_of_each_result() -> None:
    """A known difference of the embedded broker has a sign as well."""
    row: Row = rows()[0]
    listed = EMBEDDED_DIFFERENCES[0].row
    page = render(
        {
            (row.id, "RabbitMQ 4.0.5"): Outcome.FAILS,
            (row.id, "embedded 4.0"): Outcome.HOLDS,
            (listed, "embedded 4.0"): Outcome.FAILS,
        }
    )
    assert f"| {row.id} | {row.title} | ✓ | ✗ |" in page
    assert f"| {listed} | {_ROWS[listed].title} | ≠ | ? |" in page
