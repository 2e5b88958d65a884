"""The command's documents are those of the HTTP API, and a server's desk answers like the library's."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from msgspec import structs

import hopback.admin
from hopback.admin.app import create_app
from hopback.broker.embedded import EmbeddedManagement
from hopback.cli.desk import Look
from hopback.cli.dlq_actions import redrive
from hopback.cli.dlq_print import _plan_lines
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.server_desk import ServerDesk
from hopback.deadletters.codec import convert, encode, from_json, to_json
from hopback.deadletters.contract import FailedMessage, Moment
from hopback.deadletters.requests import (
    HIGHEST_RATE,
    MOST_IN_FLIGHT,
    RAMP,
    UNHURRIED,
    DiscardRequest,
    FromHead,
    Pace,
    RedriveRequest,
    Target,
    TargetKind,
)
from hopback.errors import BadRequest, UnsafeOperation
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType
from tests.unit.cli.desks import DLQ, MAIN, Office, office

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.cli.desk import Desk


def _request(**more: Any) -> RedriveRequest:
    target = Target(TargetKind.QUEUE, routing_key=MAIN)
    return RedriveRequest(queue=DLQ, selection=FromHead(), reason="mended", target=target, **more)


@in_virtual_time
async def test_values_are_read_back_from_their_documents() -> None:
    """Queue, plan, letter, group, message, session, job: the JSON of each says all that the value does."""
    async with office() as found:
        await found.park(3)
        operations = found.operations
        session = await operations.open_session(DLQ)
        page = await operations.messages(session.id)
        values = [
            *(await operations.queues()),
            await operations.queue(DLQ),
            await operations.plan(_request()),
            session,
            page,
            await operations.message(session.id, page.letters[0].id),
            await operations.groups(session.id),
        ]
        await operations.release(session.id)
        values.append(await operations.wait((await operations.start(_request())).id))
        values.append(FailedMessage("1-a", "a", "m", "no", Moment(7)))
        for value in values:
            assert to_json(from_json(type(value), encode(value))) == to_json(value)


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
            nowhere = await desk.plan(structs.replace(asked, export=False))
            assert nowhere["exportTo"] == ""
            assert "gone for good" in "\n".join(text for _, text in _plan_lines(nowhere))
            for verb in (desk.plan, desk.start):
                with pytest.raises(CommandFailed, match="--export-to") as refused:
                    await verb(structs.replace(asked, export_to="mine.ndjson"))
                assert refused.value.code == Exit.USAGE
            assert len(found.held(DLQ)) == 1


def test_a_job_has_the_same_defaults_and_bounds_whoever_asks() -> None:
    """Library, API and command: in flight, highest rate, no ramp; the page offers the ramp of the library."""
    assert from_json(Pace, b"{}") == UNHURRIED
    options = {option.name: option for option in redrive.params}
    assert options["in_flight"].default == UNHURRIED.in_flight
    assert options["in_flight"].type.max == MOST_IN_FLIGHT  # type: ignore[attr-defined]
    assert options["rate"].type.max == HIGHEST_RATE  # type: ignore[attr-defined]
    assert options["ramp"].default is None
    convert(Pace, {"rate": HIGHEST_RATE, "inFlight": MOST_IN_FLIGHT})
    for wrong in ({"rate": HIGHEST_RATE + 1}, {"inFlight": MOST_IN_FLIGHT + 1}):
        with pytest.raises(BadRequest, match=next(iter(wrong))):
            convert(Pace, wrong)
    page = (Path(hopback.admin.__file__).parent / "templates" / "act.html").read_text()
    assert "1, then 5, then 25" in page
    assert RAMP == (1, 5, 25)
