"""Random lives of a job on a classic queue: equal messages, kills, new ones, and people who look meanwhile.

`python -m tests.unit.operations.lives 0 3000` plays so many; what it prints is to be looked at. A third
number is how long the queues are at most: with 80 messages for each in flight a job holds more at a time.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import TYPE_CHECKING

from hopback.broker.embedded import run_virtual
from hopback.deadletters.contract import JobState
from hopback.deadletters.head import walk
from hopback.deadletters.requests import Pace, Selection, Settings
from hopback.message import Message
from tests.unit.operations.kills import Steps
from tests.unit.operations.shop import DLQ, MAIN, open_shop, properties, redrive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.deadletters.contract import Job
    from tests.unit.operations.shop import Shop

__all__ = ["play"]

_CLASSIC = {"queue": MAIN, "queue_type": "classic"}
_MOST_KILLS = 4
_LONGEST = 80


def play(seed: int, longest: int = _LONGEST) -> JobState:
    """One life; the state in which its job ends. AssertionError if a promise is broken."""
    return run_virtual(_life(random.Random(seed), longest))


class _Messages:
    """What is in the queue: each has a number that no mark knows, and a body that others may have, too."""

    def __init__(self, chance: random.Random, longest: int) -> None:
        self._chance = chance
        self.count = chance.randrange(3, longest)
        self._bodies = _bodies(chance, self.count)
        self.limit = chance.choice([None, chance.randrange(1, self.count + 1)])
        self.is_filtered = chance.random() < 0.3
        self._ids = [
            chance.choice(["yes", "yes", "no"]) if self.is_filtered else "m" for _ in self._bodies
        ]
        if self.is_filtered and chance.random() < 0.5:  # equal ones are left out together
            self._ids = ["no" if body % 3 == 0 else "yes" for body in self._bodies]
        self.selected = {
            number for number in range(len(self._bodies[: self.limit])) if self._ids[number] != "no"
        }
        self.total = self.count

    def first(self) -> list[Message]:
        """Those that are there at the beginning."""
        pairs = zip(self._bodies, self._ids, strict=True)
        return [_message(number, *pair) for number, pair in enumerate(pairs)]

    def late(self, count: int) -> list[Message]:
        """New ones, many of them equal to old ones."""
        chance, new = self._chance, []
        for _ in range(count):
            is_equal = chance.random() < 0.6
            body = chance.choice(self._bodies) if is_equal else chance.randrange(1000, 2000)
            new.append(_message(self.total, body, chance.choice(self._ids)))
            self.total += 1
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


def _message(number: int, body: int, ident: str) -> Message:
    return Message("", DLQ, b"%d" % body, properties(ident, {"number": number}))


async def _life(chance: random.Random, longest: int) -> JobState:
    steps = Steps()
    settings = Settings(per_turn=chance.choice([1, 3, 64]))
    async with open_shop("ratatoskr", _CLASSIC, journal=steps.journal, settings=settings) as shop:
        there = _Messages(chance, longest)
        await shop.publish(there.first())
        count = there.count
        await _look(shop, chance.choice([0, 0, 0, count, chance.randrange(count + 1)]))
        steps.broker, shop.broker.faults = shop.broker, steps
        steps.kill_at(chance.randrange(1, 3 * count + 10))
        selection = Selection(limit=there.limit, filter="id:yes" if there.is_filtered else "")
        pace = Pace(in_flight=chance.choice([1, 2, 3, 5]))
        job = await shop.operations.start(redrive(selection=selection, pace=pace))
        for kill in range(_MOST_KILLS):
            job = await shop.operations.wait(job.id)
            if job.state is not JobState.INTERRUPTED:
                break
            late = chance.choice([0, 0, 1, 3, 10, 40])
            await shop.publish(there.late(late))
            if chance.random() < 0.3:
                await _look(shop, chance.randrange(1, count + late + 1))
            dies = kill + 1 < _MOST_KILLS and chance.random() < 0.6
            steps.kill_at(chance.randrange(1, 2 * count + 10) if dies else 0)
            await shop.operations.resume(job.id)
        job = await shop.operations.wait(job.id)
        _check(shop, there, job, steps.journal.told_done)
        return job.state


async def _look(shop: Shop, count: int) -> None:
    """Somebody looks at so many, and gives them back."""
    if count:
        cost = (await shop.operations.queue(DLQ)).cost
        assert len([one async for one in walk(shop.broker, DLQ, count, cost)]) <= count


def _check(shop: Shop, there: _Messages, job: Job, told: Sequence[int]) -> None:
    left, moved = _numbers(shop, DLQ), _numbers(shop, MAIN)
    everything = set(range(there.total))
    assert set(left) | set(moved) == everything
    assert not set(moved) - there.selected
    assert list(told) == sorted(told)
    if job.state is JobState.COMPLETED:
        assert left == sorted(everything - there.selected)
        assert job.counts.done == len(there.selected)
    else:
        assert job.state is JobState.FAILED
        assert "nobody can tell where the selection ends" in job.reason
    assert shop.held() == 0


def _numbers(shop: Shop, queue: str) -> list[int]:
    found = (message.properties.headers["number"] for message in shop.queue(queue).ready)
    return [number for number in found if isinstance(number, int)]


def _main(first: int, last: int, longest: int = _LONGEST) -> None:
    ends = Counter[str]()
    for seed in range(first, last):
        try:
            ends[play(seed, longest)] += 1
        except AssertionError as broken:
            ends["broken"] += 1
            sys.stdout.write(f"{seed}: {str(broken).splitlines()[:1]}\n")
    sys.stdout.write(f"{dict(ends)}\n")


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
