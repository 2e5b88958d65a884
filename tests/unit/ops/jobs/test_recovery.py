"""Jobs whose process is killed at every step move their selection and no other message."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import run_virtual
from hopback.message import Message
from hopback.ops.browse.walk import walk
from hopback.ops.contract.requests import Pace, Selection, SessionRequest, Settings
from hopback.ops.contract.values import JobState
from hopback.ops.jobs.job_progress import certain_counts
from hopback.testing import in_virtual_time
from tests.unit.ops.jobs.kills import Steps
from tests.unit.ops.shop import (
    ANN,
    DLQ,
    MAIN,
    Shop,
    discard,
    open_shop,
    properties,
    redrive,
)

if TYPE_CHECKING:
    from hopback.ops.contract.values import Job

_COUNT, _LIMIT, _IN_FLIGHT = 60, 45, 3


async def _killed_and_resumed(
    shop: Shop, steps: Steps, ident: str, kills: list[int], late: int = 1
) -> Job:
    """The job when it ends by itself, after it was killed at these steps of its runs."""
    while True:
        job = await shop.operations.wait(ident)
        if job.state is not JobState.INTERRUPTED:
            return job
        await shop.publish([Message("", DLQ, b"late")] * late)
        steps.kill_at(kills.pop() if kills else 0)
        await shop.operations.resume(ident)


async def _browsed(shop: Shop) -> None:
    """All messages were delivered once and returned."""
    cost = (await shop.operations.queue(DLQ)).cost
    async with walk(shop.operations.broker.new_connection, DLQ, _COUNT, cost) as messages:
        assert [delivery async for delivery in messages]


def _parked(*, twins: bool) -> list[Message]:
    return [
        Message("", DLQ, b"%d" % (n % 7 if twins else n), properties("m")) for n in range(_COUNT)
    ]


_QUEUES = {
    "classic": ("ratatoskr", {"queue": MAIN, "queue_type": "classic"}),
    "quorum": ("recommended", {"queue": MAIN}),
}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("second", [0, 3], ids=["once", "twice"])
def test_new_message_that_equals_the_last_one_is_not_moved(kind: str, second: int) -> None:
    """It arrives after the kill and is browsed, so its redelivered flag is set, too."""
    parked = [Message("", DLQ, b"%d" % n, properties("m")) for n in range(3)]

    async def live(kill: int) -> str:
        steps = Steps()
        design, given = _QUEUES[kind]
        async with open_shop(
            design, given, journal=steps.journal, settings=Settings(per_turn=1)
        ) as shop:
            await shop.publish(parked)
            steps.broker, shop.broker.faults = shop.broker, steps
            steps.kill_at(kill)
            job = await shop.operations.start(redrive(pace=Pace(in_flight=1)))
            if (await shop.operations.wait(job.id)).state is not JobState.INTERRUPTED:
                return "not killed"
            await shop.publish(parked[-1:])
            await _browsed(shop)
            for step in (second, 0) if second else (0,):
                steps.kill_at(step)
                await shop.operations.resume(job.id)
                job = await shop.operations.wait(job.id)
            moved, left = shop.bodies(MAIN), shop.bodies(DLQ)
            assert {*moved, *left} == {one.body for one in parked}
            assert b"2" in left, (kill, job)
            if job.state is JobState.COMPLETED:
                assert (job.counts.done, job.counts.remaining) == (3, 0)
                assert len(left) == 1 or "may still have it" in job.state_reason
            else:
                assert job.state_reason.endswith("start a new job")
            return job.state

    states = Counter[str]()
    for kill in range(1, 100):
        state = run_virtual(live(kill))
        states[state] += 1
        if state == "not killed":
            break
    assert states[JobState.COMPLETED] > 5


@pytest.mark.parametrize("per_turn", [1, 3, 32])
@pytest.mark.parametrize("browsed", [False, True], ids=["never seen", "seen before"])
@pytest.mark.parametrize("limit", [_LIMIT, None], ids=["some", "all"])
@pytest.mark.parametrize("twins", [False, True], ids=["all differ", "some are twins"])
def test_redrive_killed_at_each_step_moves_only_its_selection(
    per_turn: int, browsed: bool, limit: int | None, twins: bool
) -> None:
    """It is killed twice. It fails if messages behind the selection had been delivered before."""
    ends = Counter[JobState]()
    for step in range(1, 120, 7):
        run_virtual(_redriven(step, per_turn, browsed, limit, twins, ends))
    assert ends[JobState.COMPLETED] or browsed


async def _redriven(
    step: int,
    per_turn: int,
    browsed: bool,
    limit: int | None,
    twins: bool,
    ends: Counter[JobState],
) -> None:
    steps = Steps()
    async with open_shop(journal=steps.journal, settings=Settings(per_turn=per_turn)) as shop:
        parked = _parked(twins=twins)
        await shop.publish(parked)
        if browsed:
            await _browsed(shop)
        steps.broker, shop.broker.faults = shop.broker, steps
        steps.kill_at(step)
        asked = redrive(selection=Selection(limit=limit), pace=Pace(in_flight=_IN_FLIGHT))
        job = await shop.operations.start(asked)
        done = await _killed_and_resumed(shop, steps, job.id, [step // 2 + 1])
        ends[done.state] += 1
        selected = Counter(message.body for message in parked[:limit])
        others = Counter(message.body for message in parked[_COUNT if limit is None else limit :])
        left, moved = Counter(shop.bodies(DLQ)), Counter(shop.bodies(MAIN))
        others[b"late"] = done.run - 1
        assert not (selected + others) - (left + moved)
        assert not others - left
        if done.state is JobState.COMPLETED:
            assert not left - others
            assert done.counts.done == selected.total()
        else:
            assert "unknown where the selection ends" in done.state_reason
        assert shop.held() == 0


@pytest.mark.parametrize("late", [0, 4], ids=["nothing new", "new ones"])
@pytest.mark.parametrize("limit", [_LIMIT, None], ids=["some", "all"])
@pytest.mark.parametrize("apart", [7, 20])
def test_equal_messages_in_classic_queue_killed_at_each_step_are_moved_once(
    apart: int, limit: int | None, late: int
) -> None:
    """Otherwise the job fails because the end of its selection is unknown."""
    ends = Counter[JobState]()
    for step in range(1, 150, 9):
        run_virtual(_twins_redriven(step, apart, limit, late, ends))
    assert ends[JobState.COMPLETED]


async def _twins_redriven(
    step: int, apart: int, limit: int | None, late: int, ends: Counter[JobState]
) -> None:
    steps = Steps()
    classic = {"queue": MAIN, "queue_type": "classic"}
    async with open_shop("ratatoskr", classic, journal=steps.journal) as shop:
        bodies = [b"%d" % (n % apart) for n in range(_COUNT)]
        await shop.publish(Message("", DLQ, body, properties("m")) for body in bodies)
        steps.broker, shop.broker.faults = shop.broker, steps
        steps.kill_at(step)
        asked = redrive(selection=Selection(limit=limit), pace=Pace(in_flight=_IN_FLIGHT))
        job = await shop.operations.start(asked)
        done = await _killed_and_resumed(shop, steps, job.id, [step // 2 + 1], late)
        ends[done.state] += 1
        selected = Counter(bodies[:limit])
        others = Counter(bodies) - selected
        others[b"late"] = late * (done.run - 1)
        left, moved = Counter(shop.bodies(DLQ)), Counter(shop.bodies(MAIN))
        assert not (selected + others) - (left + moved)
        assert not others - left
        if done.state is JobState.COMPLETED:
            assert not left - others
            assert done.counts.done == selected.total()
        else:
            assert "unknown where the selection ends" in done.state_reason
        assert shop.held() == 0


def test_done_count_never_decreases_after_resume() -> None:
    """Messages sent but not acked are redelivered to a resumed job."""
    seen_again = [run_virtual(_told_by_each_run(step)) for step in range(1, 120, 7)]
    assert any(seen_again)


async def _told_by_each_run(step: int) -> bool:
    """Whether the second run began with a lower count than the first had reported."""
    steps = Steps()
    async with open_shop(journal=steps.journal, settings=Settings(per_turn=3)) as shop:
        await shop.publish(_parked(twins=False))
        steps.broker, shop.broker.faults = shop.broker, steps
        steps.kill_at(step)
        job = await shop.operations.start(redrive(pace=Pace(in_flight=_IN_FLIGHT)))
        await shop.operations.wait(job.id)
        stopped = await steps.journal.job(job.id)
        done = await _killed_and_resumed(shop, steps, job.id, [])
        told = steps.journal.told_done
        assert told == sorted(told)
        assert (told[-1], done.state) == (_COUNT, JobState.COMPLETED)
        return stopped is not None and certain_counts(stopped).done < stopped.counts.done


@pytest.mark.parametrize("limit", [_LIMIT, None], ids=["some", "all"])
@in_virtual_time
async def test_job_stops_if_its_held_messages_were_republished(limit: int | None) -> None:
    """It counts none of them as done."""
    steps = Steps()
    async with open_shop(journal=steps.journal, settings=Settings(per_turn=3)) as shop:
        parked = _parked(twins=False)
        await shop.publish(parked)
        steps.broker, shop.broker.faults = shop.broker, steps
        steps.kill_at(64)
        asked = redrive(selection=Selection(limit=limit), pace=Pace(in_flight=_IN_FLIGHT))
        job = await shop.operations.wait((await shop.operations.start(asked)).id)
        assert job.state is JobState.INTERRUPTED
        left = [Message("", DLQ, one.body, one.properties) for one in shop.queue(DLQ).ready]
        connection = await shop.broker.connect("somebody")
        await (await connection.open_channel()).purge_queue(DLQ)
        await shop.publish(left)
        done = await shop.operations.wait((await shop.operations.resume(job.id)).id)
        moved, rest = set(shop.bodies(MAIN)), set(shop.bodies(DLQ))
        assert (done.state, done.counts.done) == (JobState.FAILED, job.counts.done)
        assert "unknown where the selection ends" in done.state_reason
        assert moved | rest == {message.body for message in parked}
        assert moved <= {message.body for message in parked[:limit]}
        assert len(rest & {message.body for message in parked[:limit]}) <= len(left)


@pytest.mark.parametrize("browsed", [False, True], ids=["never seen", "seen before"])
@pytest.mark.parametrize("limit", [_LIMIT, None], ids=["some", "all"])
def test_discard_killed_at_each_step_removes_only_its_selection(
    browsed: bool, limit: int | None
) -> None:
    for step in range(1, 100, 3):
        run_virtual(_discarded(step, browsed, limit))


async def _discarded(step: int, browsed: bool, limit: int | None) -> None:
    steps = Steps()
    async with open_shop(journal=steps.journal) as shop:
        await shop.publish(_parked(twins=False))
        if browsed:
            await _browsed(shop)
        steps.broker, shop.broker.faults = shop.broker, steps
        steps.kill_at(step)
        asked = discard(selection=Selection(limit=limit), pace=Pace(in_flight=_IN_FLIGHT))
        job = await shop.operations.start(asked)
        done = await _killed_and_resumed(shop, steps, job.id, [step // 2 + 1])
        others = {b"%d" % n for n in range(_COUNT if limit is None else limit, _COUNT)}
        left = set(shop.bodies(DLQ)) - {b"late"}
        assert not others - left
        assert done.state is not JobState.COMPLETED or left == others


@in_virtual_time
async def test_chosen_messages_are_found_at_end_of_quorum_queue_after_kill() -> None:
    """A quorum queue returns held messages to its end."""
    steps = Steps()
    async with open_shop(journal=steps.journal) as shop:
        await shop.publish(_parked(twins=False))
        await _browsed(shop)
        steps.broker, shop.broker.faults = shop.broker, steps
        session = await shop.operations.on_behalf_of(ANN).open_session(
            DLQ, SessionRequest(limit=10)
        )
        dead_letters = (await shop.operations.messages(session.id, limit=100)).dead_letters
        chosen = tuple(dead_letter.id for dead_letter in dead_letters[:6])
        steps.kill_at(1)
        job = await shop.operations.start(
            redrive(selection=Selection(session=session.id, ids=chosen))
        )
        done = await _killed_and_resumed(shop, steps, job.id, [1, 1])
        assert (done.state, done.run, done.counts.done) == (JobState.COMPLETED, 4, 6)
        assert sorted(shop.bodies(MAIN)) == [b"%d" % n for n in range(6)]
        left = set(shop.bodies(DLQ)) - {b"late"}
        assert left == {b"%d" % n for n in range(6, _COUNT)}


@pytest.mark.parametrize("limit", [_LIMIT, None], ids=["some", "all"])
def test_filtered_redrive_killed_at_each_step_keeps_other_messages(limit: int | None) -> None:
    """They are counted as skipped."""
    for step in range(1, 130, 9):
        run_virtual(_filtered(step, limit))


async def _filtered(step: int, limit: int | None) -> None:
    steps = Steps()
    async with open_shop(journal=steps.journal) as shop:
        numbers = range(_COUNT)
        await shop.publish(
            Message("", DLQ, b"%d" % n, properties("no" if n % 3 else "yes")) for n in numbers
        )
        steps.broker, shop.broker.faults = shop.broker, steps
        steps.kill_at(step)
        selection = Selection(limit=limit, filter="id:yes")
        asked = redrive(selection=selection, pace=Pace(in_flight=_IN_FLIGHT))
        job = await shop.operations.start(asked)
        done = await _killed_and_resumed(shop, steps, job.id, [step // 2 + 1])
        selected = {b"%d" % n for n in numbers[:limit] if n % 3 == 0}
        others = {b"%d" % n for n in numbers} - selected
        left, moved = set(shop.bodies(DLQ)) - {b"late"}, set(shop.bodies(MAIN))
        assert not others - left
        assert not moved - selected
        if done.state is JobState.COMPLETED:
            assert left == others
            skipped = len(numbers[:limit]) - len(selected)
            assert (done.counts.done, done.counts.skipped) == (len(selected), skipped)
