"""Delayed messages on a real RabbitMQ: never early, all of them, by way of several queues."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, RabbitMQ, Service, Snooze
from tests.harness.versions import SUITES, installations
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.rabbitmq import RabbitNode

_DELAYS_MS = (0, 1, 1000, 1500, 3000, 5000, 7000)
_EACH = 20


async def _come_when_due(url: str) -> None:
    app = App("later")
    app.delays("1m")
    early: list[float] = []
    came: set[tuple[int, int]] = set()

    @app.handler("later.work", retry=None)
    async def work(payload: dict[str, Any], context: Context) -> None:
        early.append(max(0.0, payload["due"] - time.time()))
        assert not any(name.startswith(("x-", "hopback-")) for name in context.headers)
        came.add((payload["delay"], payload["n"]))

    snoozed: dict[int, list[float]] = {}

    @app.handler("later.snoozes", retry=["1s"])
    async def snooze(number: int) -> Snooze | None:
        runs = snoozed.setdefault(number, [])
        runs.append(time.time())
        return Snooze("3s") if len(runs) < 4 else None

    service = Service(app, RabbitMQ(url))
    running = asyncio.create_task(service.run())
    await asyncio.wait_for(service.ready.wait(), 60)
    await asyncio.gather(
        *(
            app.publish(
                "",
                "later.work",
                {"n": n, "delay": delay_ms, "due": time.time() + delay_ms / 1000},
                delay=delay_ms / 1000,
            )
            for n in range(_EACH)
            for delay_ms in _DELAYS_MS
        )
    )
    await asyncio.gather(*(app.publish("", "later.snoozes", n) for n in range(_EACH)))
    await until(
        lambda: (
            len(came) == _EACH * len(_DELAYS_MS) and sum(map(len, snoozed.values())) >= 4 * _EACH
        ),
        seconds=240,
    )  # a broker may hold dead letters back for 180 s
    service.stop()
    await running
    assert max(early) == 0.0
    # Each time by the same queues: no broker takes it for a cycle, and none comes back early.
    waits = [after - before for runs in snoozed.values() for before, after in pairwise(runs)]
    assert len(waits) == 3 * _EACH
    assert min(waits) >= 3.0


@pytest.mark.broker
async def test_delayed_messages_come_when_they_are_due(amqp_url: str) -> None:
    """None is early, none is missing, and nothing of the way is left on them."""
    await _come_when_due(amqp_url)


@pytest.mark.broker
@pytest.mark.all_brokers
@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_delayed_messages_come_when_they_are_due_on_newer_brokers(
    start_rabbitmq: Callable[..., RabbitNode], suite: str
) -> None:
    """The same, with at-least-once dead-lettering as those versions have it."""
    await _come_when_due(start_rabbitmq(installation=installations()[suite]).url)
