"""Parsing RabbitMQ's errors about conflicting declarations, and the common advice."""

from __future__ import annotations

import pytest

from hopback.broker.apply import live_plan
from hopback.broker.declare import Inequivalent, declare, difference_of, read_inequivalent
from hopback.broker.embedded import EmbeddedBroker
from hopback.broker.embedded.management import EmbeddedManagement
from hopback.errors import TopologyConflict
from hopback.topology.model import Exchange, Queue, QueueType, Topology

_START = "PRECONDITION_FAILED - inequivalent arg "


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "'x-message-ttl' for queue 'q' in vhost '/': received '5000' but current is '1000'",
            Inequivalent("queue", "q", "x-message-ttl", "5000", "1000"),
        ),
        (
            "'x-max-length' for queue 'q' in vhost 'v': received the value '5' of type 'long' "
            "but current is none",
            Inequivalent("queue", "q", "x-max-length", "5", None),
        ),
        (
            "'x-expires' for queue 'q' in vhost '/': received none but current is the value "
            "'60000' of type 'signedint'",
            Inequivalent("queue", "q", "x-expires", None, "60000"),
        ),
        (
            "'type' for exchange 'it's odd' in vhost '/': received 'topic' but current is 'direct'",
            Inequivalent("exchange", "it's odd", "type", "topic", "direct"),
        ),
    ],
)
def test_inequivalent_argument_errors_are_parsed(text: str, found: Inequivalent) -> None:
    """Values with and without types, missing on either side, quotes in names."""
    assert read_inequivalent(_START + text) == found


def test_other_406_texts_are_kept() -> None:
    text = "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'q'"
    assert read_inequivalent(text) is None
    assert text in str(difference_of(text, Queue("q")))


_HARD = {
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "d",
    "x-overflow": "reject-publish",
}


@pytest.mark.parametrize(
    ("there", "desired", "words"),
    [
        (
            Queue("q", QueueType.QUORUM, arguments=_HARD),
            Queue(
                "q",
                QueueType.QUORUM,
                arguments={**_HARD, "x-dead-letter-strategy": "at-least-once"},
            ),
            "a policy with dead-letter-strategy",
        ),
        (
            Queue("q", arguments={"x-message-ttl": 5000}),
            Queue("q", arguments={"x-message-ttl": 1000}),
            "a policy with message-ttl: 1000",
        ),
        (
            Queue("q", arguments={"x-message-ttl": 1000}),
            Queue("q", arguments={"x-message-ttl": 5000}),
            "RabbitMQ uses the smaller value",
        ),
        (
            Queue("q"),
            Queue("q", arguments={"x-max-priority": 5}),
            "it cannot change in place",
        ),
        (Exchange("x"), Exchange("x", "topic"), "delete the exchange"),
    ],
    ids=["strategy", "shorter", "longer", "priority", "exchange"],
)
async def test_conflict_advice_is_equal_in_declare_and_plan(
    there: Queue | Exchange, desired: Queue | Exchange, words: str
) -> None:
    """The plan is made with and without the management API."""

    def holding(item: Queue | Exchange) -> Topology:
        if isinstance(item, Queue):
            return Topology("t", queues=(item,))
        return Topology("t", exchanges=(item,))

    broker = EmbeddedBroker()
    connection = await broker.connect("test")
    await declare(connection, holding(there))
    wanted = holding(desired)
    view = EmbeddedManagement(broker)
    advices = [
        plan.conflicts[0].differences[0].advice
        for plan in (
            await live_plan(wanted, connection, view, "/"),
            await live_plan(wanted, connection, None, "/"),
        )
    ]
    with pytest.raises(TopologyConflict) as refused:
        await declare(connection, wanted)
    assert advices[0] == advices[1]
    assert words in advices[0]
    assert advices[0] in str(refused.value)
    await connection.close()
