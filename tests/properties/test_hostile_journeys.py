"""Messages with arbitrary bytes in properties, routing key and headers follow their plan unchanged."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, Retry, Snooze
from hopback.broker.embedded import EmbeddedBroker
from hopback.message import Message, Properties
from hopback.testing import AppTest, in_virtual_time
from hopback.version import BrokerVersion
from tests.harness.hostile_bytes import hostile_properties, hostile_text, own_part
from tests.harness.seeded import publish

if TYPE_CHECKING:
    from hopback.policy import Outcome

_MESSAGES = 40


def _outcome_of(run: int) -> Outcome:
    """Snooze, retry, delay beyond all retry queues, and park at the last attempt."""
    return (Snooze("1s"), Retry("no"), Snooze("2h"), Retry("later", after="3h"), Retry("no"))[run]


@pytest.mark.parametrize("version", ["3.10", "4.3"])
def test_message_of_any_bytes_is_retried_snoozed_delayed_and_parked_unchanged(
    version: str,
) -> None:
    _run_messages(random.Random(version), version)


@in_virtual_time
async def _run_messages(chance: random.Random, version: str) -> None:
    app = App("shop")
    app.delays("1d")
    app.queue("orders", bind={"events": ["#"]}, retry=["1s", "5s"], attempts=3)
    runs: dict[bytes, list[tuple[str, Properties]]] = {}

    @app.handler("orders")
    async def handle(context: Context) -> Any:
        seen = runs.setdefault(context.delivery.body, [])
        seen.append((context.routing_key, context.delivery.properties))
        return _outcome_of(len(seen) - 1)

    broker = EmbeddedBroker(version=BrokerVersion.parse(version))
    async with AppTest(app, broker=broker) as test:
        for number in range(_MESSAGES):
            key = hostile_text(chance).decode("utf-8", "surrogateescape")
            properties = hostile_properties(chance)
            message = Message("events", key, b"%d" % number, properties)
            await publish(broker, message)
        tally = await test.drain()
        parked = {
            dead_letter.body: dead_letter.properties for dead_letter in test.dead_letters("orders")
        }
    assert len(parked) == _MESSAGES, tally
    for body, seen in runs.items():
        first_key, first = seen[0]
        expected = own_part(first)
        for key, properties in seen[1:]:
            assert (key, own_part(properties)) == (first_key, expected)
        assert own_part(parked[body]) == expected
