"""A handler that never returns, on RabbitMQ with a short consumer timeout.

`python -m tests.faults hanging` is the long form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.hanging import HANGS, run_beside_hanging
from tests.harness.configuration import Timings
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.rabbitmq import RabbitNode

pytestmark = pytest.mark.broker

TIMEOUT_MS = 3_000


@pytest.mark.waits(9)
async def test_hanging_handler_is_parked_and_stops_no_other_message(
    start_rabbitmq: Callable[..., RabbitNode],
) -> None:
    await _hang(start_rabbitmq(timings=Timings(consumer_timeout_ms=TIMEOUT_MS)), "coroutine")


@pytest.mark.all_brokers
@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_hanging_handler_is_parked_and_stops_no_other_message_on_newer_brokers(
    suite: str, hang: str, start_rabbitmq: Callable[..., RabbitNode]
) -> None:
    timings = Timings(consumer_timeout_ms=TIMEOUT_MS)
    await _hang(start_rabbitmq(installation=installations()[suite], timings=timings), hang)


async def _hang(node: RabbitNode, hang: str) -> None:
    result = await run_beside_hanging(node.url, hang, TIMEOUT_MS, attempts=1)
    assert result.holds, result
    assert result.attempts == 1
