"""Re-drives over connections that drop at random, lose confirms or refuse messages, resumed until
done.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from hopback.broker.embedded import Fault, run_virtual
from hopback.errors import BrokerError
from hopback.message import Message
from hopback.ops.contract.requests import Pace, Selection, Settings
from hopback.ops.contract.values import JobState
from hopback.version import BrokerVersion
from tests.unit.ops.shop import DLQ, MAIN, Shop, open_shop, properties, redrive

_CUTS = (
    Fault.CUT_AFTER_PUBLISH,
    Fault.CUT_BEFORE_PUBLISH,
    Fault.CUT_AFTER_SETTLE,
    Fault.CUT_BEFORE_SETTLE,
)
_ALL = (*_CUTS, Fault.NACK, Fault.RETURN, Fault.LOSE_CONFIRM)
_COUNT = 120
_IN_FLIGHT = 7


async def _until_done(shop: Shop, ident: str) -> bool:
    """Resume until the job is complete. False if equal messages hide the end of its selection."""
    for run in range(1, 400):
        job = await shop.operations.wait(ident)
        if job.state is JobState.COMPLETED:
            return True
        if "unknown where the selection ends" in job.state_reason:
            return False
        shop.broker.faults.clear()
        if run < 60:
            _trouble(shop, random.Random(run))
        while True:
            try:
                await shop.operations.resume(ident)
                break
            except BrokerError:
                continue
    raise AssertionError("it never came to an end")


def _trouble(shop: Shop, chance: random.Random) -> None:
    for fault in _ALL:
        shop.broker.faults.chance(fault, chance.choice((0.0, 0.0, 0.02, 0.05)))


def _parked(chance: random.Random, twins: bool) -> list[Message]:
    """Messages of two types, some of them twins in every byte."""
    if not twins:
        return [Message("", DLQ, b"%d" % n, properties(f"m{n}")) for n in range(_COUNT)]
    return [
        Message("", DLQ, b"%d" % (n if chance.random() < 0.9 else 0), properties(f"m{n % 50}"))
        for n in range(_COUNT)
    ]


@pytest.mark.parametrize("seed", [0, 1, 4, 7, 16])
@pytest.mark.parametrize("per_turn", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("version", ["3.10", "4.0"])
@pytest.mark.parametrize("twins", [False, True], ids=["all differ", "some are twins"])
def test_redrive_over_failing_connections_loses_no_message(
    seed: int, per_turn: int, version: str, twins: bool
) -> None:
    """Duplicates stay within the window, and unselected messages stay.

    The number of event-loop turns varies, so that a different set of messages has arrived each
    time.
    """
    run_virtual(_weather(seed, per_turn, version, twins))


async def _weather(seed: int, per_turn: int, version: str, twins: bool) -> None:
    chance = random.Random(seed)
    settings = Settings(per_turn=per_turn)
    async with open_shop(version=BrokerVersion.parse(version), settings=settings) as shop:
        parked = _parked(chance, twins)
        await shop.publish(parked)
        _trouble(shop, chance)
        pace = Pace(in_flight=_IN_FLIGHT, pause_s=0.01)
        limit = _COUNT - 10
        selection = Selection(limit=limit)
        while True:
            try:
                job = await shop.operations.start(redrive(selection=selection, pace=pace))
                break
            except BrokerError:
                continue
        is_done = await _until_done(shop, job.id)
        wanted = Counter(message.body for message in parked[:limit])
        found = Counter(shop.bodies(MAIN))
        if not is_done:
            others = Counter(message.body for message in parked[limit:])
            assert twins
            assert not others - Counter(shop.bodies(DLQ))
            assert not wanted - found - Counter(shop.bodies(DLQ))
            return
        assert not wanted - found
        assert (found - wanted).total() <= shop.broker.connected * _IN_FLIGHT
        assert Counter(shop.bodies(DLQ)) == Counter(message.body for message in parked[limit:])
        assert (await shop.operations.job(job.id)).counts.done == limit
        assert shop.held() == 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("per_turn", [1, 3, 64])
def test_filtered_redrive_over_failing_connections_keeps_other_messages(
    seed: int, per_turn: int
) -> None:
    """Each is there once.

    A dropped connection may change the order of redelivered messages in a quorum queue.
    """
    run_virtual(_filtered(seed, per_turn))


async def _filtered(seed: int, per_turn: int) -> None:
    chance = random.Random(seed)
    async with open_shop(settings=Settings(per_turn=per_turn)) as shop:
        kinds = [chance.choice(("yes", "no")) for _ in range(_COUNT)]
        await shop.publish(
            Message("", DLQ, b"%d" % n, properties(kind)) for n, kind in enumerate(kinds)
        )
        pace = Pace(in_flight=_IN_FLIGHT, pause_s=0.01)
        job = await shop.operations.start(redrive(selection=Selection(filter="id:yes"), pace=pace))
        _trouble(shop, chance)
        assert await _until_done(shop, job.id)
        kept = [b"%d" % n for n, kind in enumerate(kinds) if kind == "no"]
        assert Counter(shop.bodies(DLQ)) == Counter(kept)
        assert set(shop.bodies(MAIN)) == {b"%d" % n for n in range(_COUNT)} - set(kept)
        done = await shop.operations.job(job.id)
        assert (done.counts.done, done.counts.skipped) == (_COUNT - len(kept), len(kept))
