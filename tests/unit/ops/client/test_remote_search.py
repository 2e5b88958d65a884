"""Candidates, searches, errors and trends of a server: the same interface, over the real application."""

from __future__ import annotations

import httpx
import pytest

from hopback.errors import BadFilter, NoSuch
from hopback.message import Message
from hopback.ops.client import RemoteDeadLetters
from hopback.ops.contract.candidates import CandidateAnswer, QueueAnswer
from hopback.ops.contract.requests import SessionRequest
from hopback.ops.contract.search import SearchHit, SearchRequest, survey_queue
from hopback.ops.http.app import create_app
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue
from tests.unit.ops.cli.raffle import DLQ, Raffle, raffle


async def _unknown_queue(found: Raffle, count: int) -> None:
    connection = await found.broker.connect("test")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("left-over"))
    for _ in range(count):
        await channel.publish(Message("", "left-over", b"x"))
    await connection.close()


@in_virtual_time
async def test_remote_search_errors_and_trends_equal_library() -> None:
    async with raffle(version="3.13") as found:
        app = create_app(found.operations)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with RemoteDeadLetters("http://localhost", transport=transport) as remote:
            await found.park(30)
            hits: list[SearchHit] = []
            async for progress in remote.search(SearchRequest('"\\"number\\":27"', (DLQ,))):
                hits.extend(progress.hits)
            assert [hit.dead_letter.place for hit in hits] == [28]
            assert (progress.seen, progress.matching, progress.is_over) == (30, 1, True)
            session = await remote.open_session(DLQ, SessionRequest(limit=3, skip=27))
            assert (session.skipped, session.held) == (27, 3)
            assert await remote.body(session.id, hits[0].dead_letter.id) == b'{"number":27}'
            await remote.release(session.id)
            with pytest.raises(BadFilter):
                async for _ in remote.search(SearchRequest("nosuch:term", (DLQ,))):
                    pass
            whole = await survey_queue(remote, DLQ, "error", '"\\"number\\":2"')
            assert whole == await survey_queue(found.operations, DLQ, "error", '"\\"number\\":2"')
            assert (whole.seen, whole.matching, whole.complete) == (30, 11, True)
            with pytest.raises(NoSuch):
                await survey_queue(remote, "nowhere.dlq")
            surveyed = await remote.errors(survey=True)
            assert sum(one.count for one in surveyed.items) == 30
            assert await remote.errors() == await found.operations.errors()
            await found.operations.surveys.trends.sample()
            trend = await remote.trend(DLQ)
            assert [one.messages for one in trend.samples] == [30]
            await _unknown_queue(found, 4)
            asked = await remote.candidates()
            assert [(one.queue, one.messages) for one in asked.items] == [("left-over", 4)]
            await remote.answer_candidate(QueueAnswer("left-over", CandidateAnswer.ADD))
            assert "left-over" in {one.queue for one in await found.operations.queues()}
            with pytest.raises(NoSuch):
                await remote.answer_candidate(QueueAnswer("no-such", CandidateAnswer.ADD))
