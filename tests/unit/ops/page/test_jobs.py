"""Every selection of the page starts, and moves exactly the messages that its review names."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pytest

from hopback.ops.contract.requests import Pace, RedriveRequest, Selection, Target, TargetKind
from hopback.ops.contract.values import JobState
from hopback.testing import in_virtual_time
from tests.harness.seeded import publish
from tests.unit.ops.admin_service import DLQ, MAIN, admin, dead_letter

if TYPE_CHECKING:
    from tests.unit.ops.admin_service import Admin

_INTO = {"target": "queue", "target_queue": MAIN}


def hidden_fields(page: str) -> dict[str, str]:
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', page)
    return {name: html.unescape(value) for name, value in found}


async def _review(service: Admin, kind: str, **fields: str) -> str:
    said = {"step": "3", "on": "2", "reason": "x", "ramp": "0", **_INTO, **fields}
    answer = await service.client.post(f"/queues/{DLQ}/{kind}", data=said)
    assert answer.status_code == 200, answer.text
    return answer.text


async def _start(service: Admin, kind: str, review: str) -> str:
    said = {**hidden_fields(review), "step": "go", "confirm": DLQ}
    answer = await service.client.post(f"/queues/{DLQ}/{kind}", data=said)
    assert answer.status_code == 303, answer.text
    job = answer.headers["location"].rpartition("/")[2]
    await service.operations.wait(job)
    return job


def _ids(service: Admin, queue: str) -> list[str]:
    ready = service.broker.snapshot().queue(queue).ready
    return [message.properties.message_id or "" for message in ready]


async def _consume(service: Admin, count: int) -> None:
    """Another client takes the first messages away."""
    connection = await service.broker.connect("another client")
    channel = await connection.open_channel()
    for _ in range(count):
        found = await channel.get(DLQ)
        assert found is not None
        channel.ack(found.tag)
    await channel.qos(1)
    await connection.close()


def _two_errors(count: int, start: int = 0) -> list[Any]:
    return [
        dead_letter(n, "LookupError" if n % 2 else "KeyError") for n in range(start, start + count)
    ]


@pytest.mark.parametrize("kind", ["re-drive", "discard"])
async def test_filtered_and_limited_job_starts_on_page(kind: str) -> None:
    async with admin(*_two_errors(40)) as service:
        review = await _review(service, kind, filter="error:LookupError", export="0")
        assert "<b>20</b> messages" in review
        assert "error:LookupError" in review
        job = await service.operations.job(await _start(service, kind, review))
        assert (job.counts.done, job.selection.count) == (20, 20)
        assert _ids(service, DLQ) == [f"m-{n}" for n in range(0, 40, 2)]


@in_virtual_time
async def test_numbers_of_filtered_job_count_matching_messages() -> None:
    async with admin(*_two_errors(40)) as service:
        selection = Selection(filter="error:LookupError", limit=40, count=20)
        target = Target(TargetKind.QUEUE, routing_key=MAIN)
        request = RedriveRequest(
            queue=DLQ, selection=selection, reason="x", target=target, pace=Pace(rate=2)
        )
        job = (await service.operations.start(request)).id
        async for found in service.operations.events(job):
            if found.state is JobState.PAUSED:
                break
            if found.counts.done:
                await service.operations.pause(job)
        done, left = found.counts.done, 20 - found.counts.done
        page = (await service.client.get(f"/jobs/{job}")).text
        listed = [(await service.client.get(path)).text for path in ("/jobs", f"/queues/{DLQ}")]
        assert "Re-drive of 20 messages" in page
        assert 0 < done < 20
        assert f"<dt>Remaining</dt><dd>{left}</dd>" in page
        assert f"Cancel, keep {left} in the queue" in page
        assert all(f"{done} of 20" in each and f"{done} of 40" not in each for each in listed)
        await service.operations.cancel(job)
        await service.operations.wait(job)


@pytest.mark.parametrize(("count", "words"), [(2, "Retry these 2"), (51, "Retry all")])
async def test_retry_button_covers_failures_that_the_page_does_not_show(
    count: int, words: str
) -> None:
    async with admin(*(dead_letter(n, redrives=3) for n in range(count))) as service:
        job = await service.operations.start(RedriveRequest(queue=DLQ, reason="x"))
        await service.operations.wait(job.id)
        page = (await service.client.get(f"/jobs/{job.id}")).text
        assert re.findall(r">(Retry [^<]*)</button>", page) == [words]
        answer = await service.client.post(f"/jobs/{job.id}/retry-failures", data={"reason": "x"})
        again = await service.operations.wait(answer.headers["location"].rpartition("/")[2])
        assert again.counts.selected == count


async def test_page_refuses_chosen_messages_without_their_session() -> None:
    """The ids were ignored, and the job moved the whole queue."""
    async with admin(*_two_errors(4)) as service:
        form = {"on": "2", "step": "go", "reason": "x", "ramp": "0", "ids": ["1-ab"]}
        answer = await service.client.post(f"/queues/{DLQ}/re-drive", data=form)
        assert "selection.session" in answer.text
        assert await service.operations.jobs() == ()


async def test_page_refuses_to_retry_failures_with_too_long_reason() -> None:
    """The new job could not be read again, and with it no list of jobs."""
    async with admin(*(dead_letter(number, redrives=3) for number in range(2))) as service:
        job = (await service.operations.start(RedriveRequest(queue=DLQ, reason="x"))).id
        assert (await service.operations.wait(job)).counts.skipped == 2
        form = {"reason": "x" * 1001}
        answer = await service.client.post(f"/jobs/{job}/retry-failures", data=form)
        assert answer.status_code == 422
        assert "expected text of length <= 1000" in html.unescape(answer.text)
        assert [one.id for one in await service.operations.jobs()] == [job]


@pytest.mark.parametrize("limit", ["", "45"])
async def test_review_counts_filter_matches_exactly_beyond_its_sample(
    limit: str,
) -> None:
    messages = [dead_letter(n, "KeyError" if n % 5 else "LookupError") for n in range(60)]
    async with admin(*messages, scan=20) as service:
        review = await _review(service, "re-drive", filter="error:LookupError", limit=limit)
        exact = 9 if limit else 12
        assert f"<b>{exact}</b> messages" in review
        assert f"Re-drive {exact} messages</button>" in review
        job = await service.operations.job(await _start(service, "re-drive", review))
        assert job.counts.done == job.selection.count == exact
        assert len(_ids(service, DLQ)) == 60 - exact


@pytest.mark.parametrize("limit", ["", "30"])
@pytest.mark.parametrize("filter_", ["", "error:LookupError"])
async def test_job_moves_only_reviewed_messages_if_queue_changes_before_start(
    filter_: str, limit: str
) -> None:
    async with admin(*_two_errors(40)) as service:
        review = await _review(service, "re-drive", filter=filter_, limit=limit)
        await _consume(service, 5)
        await publish(service.broker, *_two_errors(5, start=100))
        job = await service.operations.job(await _start(service, "re-drive", review))
        end = int(limit or 40)
        meant = [f"m-{n}" for n in range(5, end) if n % 2 or not filter_]
        assert sorted(_ids(service, MAIN)) == sorted(meant)
        assert job.counts.done == job.selection.count == len(meant)


async def test_job_moves_only_reviewed_messages_if_review_sampled_queue() -> None:
    async with admin(*_two_errors(40), scan=20) as service:
        review = await _review(service, "re-drive")
        assert "Routing check <small>of 20 messages that were read</small>" in review
        await _consume(service, 3)
        await publish(service.broker, *_two_errors(5, start=100))
        await _start(service, "re-drive", review)
        assert _ids(service, MAIN) == [f"m-{n}" for n in range(3, 40)]
        assert _ids(service, DLQ) == [f"m-{n}" for n in range(100, 105)]


async def test_review_is_shown_again_if_reviewed_messages_left_queue() -> None:
    async with admin(*_two_errors(40), scan=20) as service:
        review = await _review(service, "re-drive")
        await _consume(service, 25)
        said = {**hidden_fields(review), "step": "go"}
        answer = await service.client.post(f"/queues/{DLQ}/re-drive", data=said)
        assert answer.status_code == 200
        assert "expected 40 messages, found 15" in html.unescape(answer.text)
        assert "Re-drive 15 messages</button>" in answer.text
        await _start(service, "re-drive", answer.text)
        assert len(_ids(service, MAIN)) == 15


async def test_start_refuses_selection_of_another_queue() -> None:
    async with admin(*_two_errors(4)) as service:
        order = {
            "kind": "re-drive",
            "queue": DLQ,
            "reason": "x",
            "selection": {"queue": "other.dlq"},
        }
        answer = await service.client.post("/admin/dlq/jobs", json=order)
        assert answer.status_code == 422
        assert "'orders.dlq', got 'other.dlq'" in answer.text
        assert len(_ids(service, DLQ)) == 4


async def _look(service: Admin, limit: int) -> str:
    answer = await service.client.post(
        f"/queues/{DLQ}/look", data={"limit": str(limit), "how": "plain"}
    )
    found = re.search(r"/sessions/(s-[0-9a-f]+)", answer.headers["location"])
    assert found is not None
    return found[1]


@pytest.mark.parametrize("kind", ["re-drive", "discard"])
@pytest.mark.parametrize("held", [10, 100])
async def test_group_button_covers_group_in_whole_queue(held: int, kind: str) -> None:
    async with admin(*_two_errors(40)) as service:
        session = await _look(service, held)
        page = (await service.client.get(f"/sessions/{session}?by=error")).text
        links = re.findall(rf'href="/queues/{DLQ}/{kind}\?([^"]*LookupError)">([^<]*)</a>', page)
        ((query, words),) = [link for link in links if "filter=error" in link[0]]
        assert ("20" in words) if held == 100 else ("all in the queue" in words)
        fields = dict(parse_qsl(html.unescape(query)))
        review = await _review(service, kind, **fields, export="0")
        assert "<b>20</b> messages" in review
        await _start(service, kind, review)
        assert _ids(service, DLQ) == [f"m-{n}" for n in range(0, 40, 2)]
        assert service.operations.sessions() == ()


async def test_download_contains_exactly_selected_messages() -> None:
    async with admin(*_two_errors(40)) as service:

        async def download(method: str, path: str, **fields: Any) -> list[str]:
            same = {"sec-fetch-site": "same-origin"}
            how: dict[str, Any] = (
                {"params": fields} if method == "GET" else {"data": fields, "headers": same}
            )
            answer = await service.client.request(method, path, **how)
            assert answer.status_code == 200, answer.text
            return [
                json.loads(line)["properties"]["message_id"] for line in answer.text.splitlines()
            ]

        whole, odd = f"/queues/{DLQ}/export", [f"m-{n}" for n in range(1, 40, 2)]
        assert await download("POST", whole) == [f"m-{n}" for n in range(40)]
        assert await download("POST", whole, limit="7") == [f"m-{n}" for n in range(7)]
        assert await download("POST", whole, filter="error:LookupError") == odd
        session = await _look(service, 10)
        page = await service.operations.messages(session, limit=10)
        some = [one.id for one in page.dead_letters][2:4]
        assert await download("GET", f"/sessions/{session}/export", ids=some) == ["m-2", "m-3"]
        group = {"filter": "error:LookupError", "release": session}
        assert sorted(await download("POST", whole, **group)) == sorted(odd)
        assert service.operations.sessions() == ()


async def test_second_session_reports_messages_held_by_first() -> None:
    async with admin(*_two_errors(40)) as service:
        await _look(service, 10)
        page = (await service.client.get(f"/sessions/{await _look(service, 10)}")).text
        heading = re.search(r"<h1>(.*?)</h1>", page)
        assert heading is not None
        assert "the first ready messages of" in heading[1]
        assert "10 more in other sessions" in heading[1]
