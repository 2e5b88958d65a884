"""Random lives of a job with equal messages, kills, new messages, other consumers and sessions.

`python -m tests.unit.ops.jobs.lives quorum 0 3000` plays the lives of these seeds on a quorum queue
and prints the broken ones. A fourth argument is the length of the longest queue: with 80 messages
for each message in flight a job holds more messages at a time.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hopback.broker.embedded import run_virtual
from hopback.errors import BrokerError
from hopback.message import Message
from hopback.ops.browse.walk import walk
from hopback.ops.contract.requests import Pace, Selection, Settings
from hopback.ops.contract.values import JobState
from tests.unit.ops.jobs.kills import Steps
from tests.unit.ops.shop import DLQ, MAIN, open_shop, properties, redrive

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hopback.broker.embedded.snapshot import StoredMessage
    from hopback.message import Delivery
    from hopback.ops.contract.values import Job
    from tests.unit.ops.shop import Shop

__all__ = ["play"]

_DESIGNS = {
    "classic": ("ratatoskr", {"queue": MAIN, "queue_type": "classic"}),
    "quorum": ("recommended", {"queue": MAIN}),
}
_MOST_KILLS = 4
_LONGEST = 80


def play(seed: int, kind: str = "classic", longest: int = _LONGEST) -> JobState:
    """Play one life and return the final state of its job. AssertionError if a promise is broken."""
    return run_virtual(_life(random.Random(seed), kind, longest))


class _Messages:
    """The messages of the dead-letter queue. Messages with the same body and id are equal in everything."""

    def __init__(self, chance: random.Random, longest: int) -> None:
        self._chance = chance
        self.count = chance.randrange(3, longest)
        self._bodies = _bodies(chance, self.count)
        self.limit = chance.choice([None, chance.randrange(1, self.count + 1)])
        self.is_filtered = chance.random() < 0.3
        self._ids = [
            chance.choice(["yes", "yes", "no"]) if self.is_filtered else "m" for _ in self._bodies
        ]
        if self.is_filtered and chance.random() < 0.5:  # equal messages are left out together
            self._ids = ["no" if body % 3 == 0 else "yes" for body in self._bodies]
        self.first = [
            _message(body, ident) for body, ident in zip(self._bodies, self._ids, strict=True)
        ]
        self.selected = _counted(
            message for message in self.first[: self.limit] if message.properties.message_id != "no"
        )
        self.all = _counted(self.first)

    def late(self, count: int) -> list[Message]:
        """New messages, many of them equal to old ones."""
        chance, new = self._chance, []
        for _ in range(count):
            is_equal = chance.random() < 0.6
            body = chance.choice(self._bodies) if is_equal else chance.randrange(1000, 2000)
            new.append(_message(body, chance.choice(self._ids)))
        self.all += _counted(new)
        return new


def _bodies(chance: random.Random, count: int) -> list[int]:
    kind = chance.choice(["batch", "random", "pairs", "period", "unique"])
    size = chance.choice([2, 5, 10, 20, 40])
    bodies: list[int] = []
    for number in range(count):
        match kind:
            case "batch":
                bodies.append(number % max(count // 2, 1))
            case "random":
                bodies.append(chance.randrange(size * 5))
            case "pairs":
                is_twin = bool(bodies) and chance.random() < 0.1
                bodies.append(bodies[-1] if is_twin else number)
            case "period":
                bodies.append(number % size)
            case _:
                bodies.append(number)
    return bodies


def _message(body: int, ident: str) -> Message:
    return Message("", DLQ, b"%d" % body, properties(ident))


def _counted(messages: Iterable[Message | Delivery | StoredMessage]) -> Counter[tuple[bytes, str]]:
    return Counter((one.body, one.properties.message_id or "") for one in messages)


@dataclass
class _Other:
    """A consumer of the dead-letter queue that acks or requeues some messages and then stays."""

    shop: Shop
    chance: random.Random
    acked: list[Delivery] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to consume, at this step of the job."""
        self.task = asyncio.get_running_loop().create_task(self._consume())

    async def begin_again(self) -> None:
        """Connect again after the broker has closed all connections: a consumer that came stays."""
        if self.task is not None:
            with suppress(BrokerError):
                await self.task
            await self._consume()

    async def _consume(self) -> None:
        connection = await self.shop.broker.connect("another consumer")
        channel = await connection.open_channel()
        requeues = self.chance.random() < 0.3
        left = self.chance.randrange(1, 10)

        def on_delivery(delivery: Delivery) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                return
            if requeues:
                channel.nack(delivery.tag, requeue=True)
            else:
                self.acked.append(delivery)
                channel.ack(delivery.tag)

        await channel.qos(self.chance.choice([1, 3]))
        await channel.consume(DLQ, on_delivery)


async def _life(chance: random.Random, kind: str, longest: int) -> JobState:
    steps = Steps()
    settings = Settings(per_turn=chance.choice([1, 3, 64]))
    design, given = _DESIGNS[kind]
    async with open_shop(design, given, journal=steps.journal, settings=settings) as shop:
        there = _Messages(chance, longest)
        await shop.publish(there.first)
        count = there.count
        await _look(shop, chance.choice([0, 0, 0, count, chance.randrange(count + 1)]))
        steps.broker, shop.broker.faults = shop.broker, steps
        steps.kill_at(chance.randrange(1, 3 * count + 10))
        other = _Other(shop, chance)
        if chance.random() < 0.2:
            steps.call_at(chance.randrange(1, 3 * count), other.begin)
        selection = Selection(limit=there.limit, filter="id:yes" if there.is_filtered else "")
        pace = Pace(in_flight=chance.choice([1, 2, 3, 5]))
        job = await shop.operations.start(redrive(selection=selection, pace=pace))
        for kill in range(_MOST_KILLS):
            job = await shop.operations.wait(job.id)
            if job.state is not JobState.INTERRUPTED or "other consumer" in job.state_reason:
                break
            await other.begin_again()
            late = chance.choice([0, 0, 1, 3, 10, 40])
            await shop.publish(there.late(late))
            if chance.random() < 0.3:
                await _look(shop, chance.randrange(1, count + late + 1))
            dies = kill + 1 < _MOST_KILLS and chance.random() < 0.6
            steps.kill_at(chance.randrange(1, 2 * count + 10) if dies else 0)
            await shop.operations.resume(job.id)
        job = await shop.operations.wait(job.id)
        _check(shop, there, other, job, steps.journal.told_done)
        return job.state


async def _look(shop: Shop, count: int) -> None:
    """Browse the first messages and return them."""
    if count:
        cost = (await shop.operations.queue(DLQ)).cost
        async with walk(shop.operations.broker.new_connection, DLQ, count, cost) as messages:
            assert len([one async for one in messages]) <= count


def _check(shop: Shop, there: _Messages, other: _Other, job: Job, told: Sequence[int]) -> None:
    queue = shop.queue(DLQ)
    left, moved = _counted((*queue.ready, *queue.unacked)), _counted(shop.queue(MAIN).ready)
    taken = _counted(other.acked)
    others = there.all - there.selected
    assert not there.all - (left + moved + taken), "lost"
    assert not others - (left + taken), "moved a message outside the selection"
    assert list(told) == sorted(told), "a count went back"
    if job.state is JobState.COMPLETED:
        may_be_back = int("may still have it" in job.state_reason)
        is_empty = (left - others).total() <= may_be_back
        assert is_empty or other.task, "left a selected message"
        assert job.counts.done <= there.selected.total() <= job.counts.done + taken.total(), "count"
    else:
        assert job.state in (JobState.FAILED, JobState.INTERRUPTED)
        reasons = (
            "where the selection ends",
            "interrupted at its end",
            "other consumer",
            "may be left",
        )
        assert any(reason in job.state_reason for reason in reasons), job.state_reason
    assert other.task or shop.held() == 0


def _main(kind: str, first: str, last: str, longest: str = str(_LONGEST)) -> None:
    ends = Counter[str]()
    for seed in range(int(first), int(last)):
        try:
            ends[play(seed, kind, int(longest))] += 1
        except AssertionError as broken:
            ends["broken"] += 1
            sys.stdout.write(f"{seed}: {str(broken).splitlines()[:1]}\n")
    sys.stdout.write(f"{dict(ends)}\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
