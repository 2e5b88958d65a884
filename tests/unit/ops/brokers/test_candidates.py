"""Queues that may hold dead letters: asked about once, and the answer is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.errors import BadRequest, NoSuch
from hopback.message import Message
from hopback.ops.brokers.discovery import dead_letter_queues
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.candidates import CandidateAnswer, QueueAnswer
from hopback.ops.jobs.journal import open_journal
from hopback.ops.operations import Operations
from hopback.testing import in_virtual_time
from hopback.topology.effective import effective_topology
from hopback.topology.model import Queue, Topology
from hopback.topology.roles import QueueRole, queue_roles

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = (
    "error", "celery.dead", "celery", "shipping", "shipping_error", "shipping_skipped", "emails",
    "emails_failed", "default.XQ", "default", "orders", "orders-parking-lot", "Failed", "audit-in",
    "payments.faults",
)  # fmt: skip
_TOPOLOGY = Topology("foreign", queues=tuple(map(Queue, _NAMES)))


def test_framework_queue_names_are_recognised_as_dead_letter_queues() -> None:
    """The names are those of NServiceBus, Celery, MassTransit, Symfony, Dramatiq and parking lots."""
    found = {each.name: each.origins for each in dead_letter_queues(_TOPOLOGY)}
    assert found == {
        "error": (),
        "celery.dead": ("celery",),
        "shipping_error": ("shipping",),
        "shipping_skipped": ("shipping",),
        "emails_failed": ("emails",),
        "default.XQ": ("default",),
        "orders-parking-lot": ("orders",),
        "Failed": (),
    }
    roles = queue_roles(effective_topology(_TOPOLOGY, None))
    resting = {name for name, role in roles.items() if role is QueueRole.DEAD_LETTER}
    assert resting == set(found)


@in_virtual_time
async def test_candidates_omit_main_queues_with_known_dead_letter_queue() -> None:
    """A queue whose name suggests failures is still a candidate."""
    broker = EmbeddedBroker()
    connection = await broker.connect("test")
    dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "rest.dlq"}
    worked_on = (Queue(name, arguments=dead_letters) for name in ("search", "search.failing"))
    alone = (Queue("rest.dlq"), Queue("payments.XQ"), Queue("boxqueue"))
    await declare(connection, Topology("foreign", queues=(*worked_on, *alone)))
    channel = await connection.open_channel()
    for queue in ("search", "search.failing", "payments.XQ", "boxqueue"):
        await channel.publish(Message("", queue, b"x"))
    async with Operations(
        ManagedBroker(broker, management=EmbeddedManagement(broker))
    ) as operations:
        asked = await operations.candidates()
    assert [(one.queue, one.is_likely) for one in asked.items] == [
        ("payments.XQ", True),
        ("search.failing", True),
        ("boxqueue", False),
    ]


async def _broker() -> EmbeddedBroker:
    broker = EmbeddedBroker()
    connection = await broker.connect("test")
    await declare(connection, _TOPOLOGY)
    channel = await connection.open_channel()
    for queue, count in {"payments.faults": 3, "audit-in": 7, "error": 2, "orders": 1}.items():
        for _ in range(count):
            await channel.publish(Message("", queue, b"x"))
    await channel.consume("orders", lambda _: None)
    return broker


@in_virtual_time
async def test_queues_with_messages_and_no_consumer_are_candidates(tmp_path: Path) -> None:
    """Answers are stored for all operators and can be withdrawn."""
    broker = await _broker()
    clock = LoopClock(lambda: 0.0)
    async with open_journal(f"sqlite:///{tmp_path}/jobs.db", clock) as journal:
        first = Operations(
            ManagedBroker(broker, management=EmbeddedManagement(broker), clock=clock),
            journal=journal,
        )
        asked = await first.candidates()
        assert [(one.queue, one.messages, one.is_likely) for one in asked.items] == [
            ("payments.faults", 3, True),
            ("audit-in", 7, False),
        ]
        assert asked.messages == 10
        await first.answer_candidate(
            QueueAnswer("payments.faults", CandidateAnswer.ADD, "orders", reason="we saw them")
        )
        await first.answer_candidate(QueueAnswer("audit-in", CandidateAnswer.IGNORE))
        second = Operations(
            ManagedBroker(broker, management=EmbeddedManagement(broker), clock=clock),
            journal=journal,
        )
        (row,) = [one for one in await second.queues() if one.queue == "payments.faults"]
        assert (row.known_by, row.origins, row.messages) == ("operator", ("orders",), 3)
        left = await second.candidates()
        assert left.items == ()
        assert {one.queue: one.answer.value for one in left.answers} == {
            "audit-in": "ignore", "payments.faults": "add",
        }  # fmt: skip
        await second.answer_candidate(QueueAnswer("payments.faults", CandidateAnswer.FORGET))
        again = await second.candidates()
        assert [one.queue for one in again.items] == ["payments.faults"]
        actions = [entry.action for entry in await second.audit()]
        assert actions[:3] == ["queue.forget", "queue.ignore", "queue.add"]
        await first.close()
        await second.close()


@in_virtual_time
async def test_adding_missing_queue_is_refused() -> None:
    """Without the management API, the existing queues are unknown."""
    broker = await _broker()
    async with Operations(
        ManagedBroker(broker, management=EmbeddedManagement(broker))
    ) as operations:
        with pytest.raises(NoSuch, match="errror"):
            await operations.answer_candidate(QueueAnswer("errror", CandidateAnswer.ADD))
    async with Operations(ManagedBroker(broker)) as blind:
        with pytest.raises(BadRequest, match="management"):
            await blind.candidates()
