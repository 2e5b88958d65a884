"""The command's documents are those of the HTTP API, and a server's desk answers like the library's."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest

import hopback.admin
from hopback.admin.answers import failure_answer, job_answer, queue_answer
from hopback.admin.answers_messages import group_answer, letter_answer, message_answer
from hopback.admin.api_jobs import PaceBody, plan_answer
from hopback.admin.app import create_app
from hopback.broker.embedded import EmbeddedManagement
from hopback.cli.desk import Look
from hopback.cli.dlq_actions import redrive
from hopback.cli.dlq_print import _plan_lines
from hopback.cli.documents import (
    failure_document,
    job_document,
    plan_document,
    queue_document,
)
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.letter_documents import group_document, letter_document, message_document
from hopback.cli.server_desk import ServerDesk
from hopback.deadletters.jobs import FailedMessage
from hopback.deadletters.pacing import HIGHEST_RATE, MOST_IN_FLIGHT, RAMP, UNHURRIED, Pace
from hopback.deadletters.requests import DiscardRequest, FromHead, RedriveRequest
from hopback.deadletters.targets import Target, TargetKind
from hopback.errors import UnsafeOperation
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType
from tests.unit.cli.desks import DLQ, MAIN, Office, office

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.cli.desk import Desk


def _plain(answer: object) -> Any:
    return json.loads(msgspec.json.encode(answer))


def _request(**more: Any) -> RedriveRequest:
    target = Target(TargetKind.QUEUE, routing_key=MAIN)
    return RedriveRequest(queue=DLQ, selection=FromHead(), reason="mended", target=target, **more)


@in_virtual_time
async def test_documents_have_the_names_and_values_of_the_api() -> None:
    """Queue, plan, job, letter, group and message; the command may only know more."""
    async with office() as found:
        await found.park(3)
        operations = found.operations
        detail = await operations.queue(DLQ)
        assert _plain(queue_answer(detail, 9.0)) == queue_document(detail, 9.0)
        plan = await operations.plan(_request())
        assert _plain(plan_answer(plan)) == plan_document(plan)
        session = await operations.open_session(DLQ)
        page = await operations.messages(session.id)
        for letter in page.letters:
            assert _plain(letter_answer(letter)) == letter_document(letter)
            view = await operations.message(session.id, letter.id)
            _agree(_plain(message_answer(view, "s")), message_document(view), {"bodyUrl"})
        for group in (await operations.groups(session.id)).items:
            assert _plain(group_answer(group)) == group_document(group)
        await operations.release(session.id)
        job = await operations.wait((await operations.start(_request())).id)
        _agree(_plain(job_answer(job)), job_document(job))
    failed = FailedMessage("1-a", "a", "m", "no", 7.0)
    assert _plain(failure_answer(failed)) == failure_document(failed)


def _agree(
    answer: dict[str, Any],
    document: dict[str, Any],
    without: frozenset[str] | set[str] = frozenset(),
) -> None:
    """All that the API says, the document says."""
    assert {name: document.get(name) for name in answer if name not in without} == {
        name: value for name, value in answer.items() if name not in without
    }


@asynccontextmanager
async def _served(version: str = "3.13") -> AsyncIterator[tuple[Office, ServerDesk]]:
    """A server's desk, over the real application without a socket."""
    async with office(version=version) as found:
        app = create_app(found.operations, found.broker, view=EmbeddedManagement(found.broker))
        transport = httpx.ASGITransport(app)
        async with ServerDesk("http://localhost", transport=transport) as desk:
            yield found, desk


@in_virtual_time
async def test_a_server_is_asked_with_the_same_verbs() -> None:
    """Look, plan, act and follow: the same documents as from the library."""
    async with _served() as (found, desk):
        await found.park(6)
        (row,), (known,) = await desk.queues(), await found.desk.queues()
        assert row["messages"] == 6
        _agree(row, known, without={"depth"})
        here, there = await found.desk.queue(DLQ), await desk.queue(DLQ)
        assert {**there, "depth": 0} == {**here, "depth": 0}
        async with desk.hold(Look(DLQ, 5)) as held:
            letters = await held.letters("error:TimeoutError", 10)
            first = letters["items"][0]
            assert letters["matching"] == 3
            assert (await held.message(first["id"]))["payload"] == {"number": 0}
            assert await held.body(first["id"]) == b'{"number":0}'
        groups = await desk.groups(Look(DLQ, where="error:TimeoutError"), "error")
        assert (groups["seen"], groups["matching"], groups["complete"]) == (6, 3, True)
        plan = await desk.plan(_request(pace=Pace(rate=5.0, ramp=(1, 2))))
        assert (plan["selected"], plan["mayStart"]) == (6, True)
        job = await desk.start(_request())
        states = [one["state"] async for one in desk.events(job["id"])]
        assert states[-1] == "completed"
        assert [one["id"] for one in await desk.jobs(DLQ, False, 10)] == [job["id"]]
        assert await desk.failures(job["id"], 0, 10) == []
        assert found.held(DLQ) == []
        assert len(found.held(MAIN)) == 6


@in_virtual_time
async def test_a_job_at_a_server_is_steered() -> None:
    """Pause, another rate, resume, cancel."""
    async with _served() as (found, desk):
        await found.park(9)
        job = await desk.start(_request(pace=Pace(rate=1.0)))
        await asyncio.sleep(2)  # virtual; the list is swept once a second
        assert [one["activeJob"]["id"] for one in await desk.queues()] == [job["id"]]
        assert (await desk.set_rate(job["id"], 2.0))["rate"] == 2.0
        await desk.pause(job["id"])
        async for now in found.desk.events(job["id"]):
            if now["state"] == "paused":
                break
        await desk.resume(job["id"])
        await desk.cancel(job["id"])
        assert (await found.operations.wait(job["id"])).state == "cancelled"
        assert (await desk.interrupt(job["id"]))["state"] == "cancelled"


@in_virtual_time
async def test_a_server_refuses_in_words_with_a_code() -> None:
    """Not found, conflict, bad filter, unsafe; each as the library's own refusal would leave."""
    async with _served() as (found, desk):
        await found.park(2)
        for work, code in (
            (desk.queue("no/such queue"), Exit.NOT_FOUND),
            (desk.job("j-none"), Exit.NOT_FOUND),
            (desk.plan(_request(max_redrives=-1)), Exit.USAGE),
            (desk.start(_request(expected_count=99)), Exit.CONFLICT),
            (desk.groups(Look(DLQ, where="nonsense"), "error"), Exit.USAGE),
        ):
            with pytest.raises(CommandFailed) as refused:
                await work
            assert refused.value.code is code, refused.value
            assert refused.value.do
        discard = DiscardRequest(queue=DLQ, selection=FromHead(), reason="junk", confirm="other")
        with pytest.raises(CommandFailed, match="confirm"):
            await desk.start(discard)
        with pytest.raises(UnsafeOperation):
            await desk.start(_into_nowhere())
        with pytest.raises(CommandFailed, match="does not export"):
            desk.export(Look(DLQ))


def _into_nowhere() -> RedriveRequest:
    target = Target(TargetKind.QUEUE, routing_key="no.such")
    return RedriveRequest(queue=DLQ, selection=FromHead(), reason="x", target=target)


@in_virtual_time
async def test_a_limit_is_lifted_where_it_is_a_danger() -> None:
    """By the library and by a server; where looking is free nothing is done."""
    for place in ("library", "server"):
        async with _served("4.0") as (found, server):
            desk: Desk = found.desk if place == "library" else server
            connection = await found.broker.connect("setup")
            channel = await connection.open_channel()
            for name in ("orders", "orders.dlq"):
                await channel.declare_queue(Queue(name, QueueType.QUORUM))
            await connection.close()
            await desk.lift(DLQ)
            assert found.broker.node.policies.all() == ()
            await desk.lift("orders.dlq")
            (policy,) = found.broker.node.policies.all()
            assert policy.definition["delivery-limit"] == -1
            assert (await desk.queue("orders.dlq"))["limitLifted"]


@pytest.mark.parametrize("url", ["localhost:8080", "amqp://localhost", "http://ann:pw@localhost"])
def test_an_address_that_is_no_servers_is_refused(url: str) -> None:
    """Without repeating a password."""
    with pytest.raises(CommandFailed) as refused:
        ServerDesk(url)
    assert refused.value.code is Exit.USAGE
    assert "pw" not in str(refused.value)


@in_virtual_time
async def test_a_discard_at_a_server_says_where_the_server_writes(tmp_path: Path) -> None:
    """The plan has the server's file, and a file of this machine is refused, not forgotten."""
    async with office(exports=tmp_path) as found:
        app = create_app(found.operations, found.broker, view=EmbeddedManagement(found.broker))
        async with ServerDesk("http://localhost", transport=httpx.ASGITransport(app)) as desk:
            await found.park(1)
            asked = DiscardRequest(queue=DLQ, selection=FromHead(), reason="old", confirm=DLQ)
            plan = await desk.plan(asked)
            assert plan["exportTo"].startswith(str(tmp_path))
            assert "gone for good" not in "\n".join(text for _, text in _plan_lines(plan))
            nowhere = await desk.plan(replace(asked, export=False))
            assert nowhere["exportTo"] == ""
            assert "gone for good" in "\n".join(text for _, text in _plan_lines(nowhere))
            for verb in (desk.plan, desk.start):
                with pytest.raises(CommandFailed, match="--export-to") as refused:
                    await verb(replace(asked, export_to="mine.ndjson"))
                assert refused.value.code == Exit.USAGE
            assert len(found.held(DLQ)) == 1


def test_a_job_has_the_same_defaults_and_bounds_whoever_asks() -> None:
    """Library, API and command: in flight, highest rate, no ramp; the page offers the ramp of the library."""
    body = PaceBody()
    assert (body.in_flight, body.rate, tuple(body.ramp)) == (
        UNHURRIED.in_flight,
        UNHURRIED.rate,
        UNHURRIED.ramp,
    )
    options = {option.name: option for option in redrive.params}
    assert options["in_flight"].default == UNHURRIED.in_flight
    assert options["in_flight"].type.max == MOST_IN_FLIGHT  # type: ignore[attr-defined]
    assert options["rate"].type.max == HIGHEST_RATE  # type: ignore[attr-defined]
    assert options["ramp"].default is None
    msgspec.convert({"rate": HIGHEST_RATE, "inFlight": MOST_IN_FLIGHT}, PaceBody)
    for wrong in ({"rate": HIGHEST_RATE + 1}, {"inFlight": MOST_IN_FLIGHT + 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, PaceBody)
    page = (Path(hopback.admin.__file__).parent / "templates" / "act.html").read_text()
    assert "1, then 5, then 25" in page
    assert RAMP == (1, 5, 25)
