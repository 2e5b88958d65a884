"""A form whose response takes minutes gets a progress page with a cancel button."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx

from hopback.broker.embedded import Fault
from hopback.ops.http.app import create_app
from hopback.testing import in_virtual_time
from tests.unit.ops.cli.raffle import DLQ, raffle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.ops.cli.raffle import Raffle

_SLOW_S = 25.0  # seconds per answer of the broker


@asynccontextmanager
async def _slow_page(count: int) -> AsyncIterator[tuple[Raffle, httpx.AsyncClient]]:
    async with raffle(version="3.13") as found:
        app = create_app(found.operations, first_read_s=None)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
        ) as client:
            await found.park(count)
            await client.get("/")
            found.broker.faults.latency = _SLOW_S
            yield found, client


async def _look(client: httpx.AsyncClient, **fields: str) -> str:
    """Start a long session and return the address of its progress page."""
    answer = await client.post(f"/queues/{DLQ}/look", data={"limit": "10", **fields})
    assert answer.status_code == 303, answer.text
    where = answer.headers["location"]
    assert re.fullmatch(r"/working/[0-9a-f]{16}", where), where
    return str(where)


@in_virtual_time
async def test_progress_page_redirects_once_to_opened_session() -> None:
    async with _slow_page(2500) as (found, client):
        where = await _look(client, skip="2490")
        page = await client.get(where)
        assert page.status_code == 200
        assert f"Looking into {DLQ}" in page.text
        assert 'http-equiv="refresh"' in page.text  # for a browser without scripts
        events = (await client.get(f"{where}/events")).text  # ends when the look is over
        assert '"total":2500' in events
        assert events.endswith("event: end\ndata: {}\n\n")
        onward = await client.get(where)
        assert onward.headers["location"].startswith("/sessions/s-")
        (session,) = found.operations.sessions()
        assert (session.skipped, session.held) == (2490, 10)
        assert (await client.get(where)).status_code == 404


@in_virtual_time
async def test_cancel_on_progress_page_returns_messages() -> None:
    """It redirects to the queue."""
    async with _slow_page(30) as (found, client):
        where = await _look(client)
        answer = await client.post(f"{where}/cancel")
        assert answer.headers["location"] == f"/queues/{DLQ}"
        assert (await client.get(where)).status_code == 404
        await asyncio.sleep(4 * _SLOW_S)  # the broker hears late that the channel is closed
        assert (found.operations.sessions(), len(found.held(DLQ))) == ((), 30)


@in_virtual_time
async def test_closed_progress_page_returns_messages() -> None:
    """The session is cancelled some seconds after the last poll."""
    async with _slow_page(30) as (found, client):
        where = await _look(client)
        await asyncio.sleep(30.0)
        assert (await client.get(where)).status_code == 404
        await asyncio.sleep(4 * _SLOW_S)
        assert (found.operations.sessions(), len(found.held(DLQ))) == ((), 30)


@in_virtual_time
async def test_late_refusal_is_shown_on_progress_page() -> None:
    async with _slow_page(30) as (found, client):
        found.broker.faults.inject(Fault.REFUSE_CONNECTION, times=10)
        where = await _look(client)
        await client.get(f"{where}/events")
        refused = await client.get(where)
        assert refused.status_code == 503
        assert "The broker does not answer" in refused.text
        assert found.operations.sessions() == ()


@in_virtual_time
async def test_long_review_uses_progress_page() -> None:
    async with _slow_page(30) as (_, client):
        said = {"step": "3", "on": "2", "reason": "the cause is repaired", "target": "design"}
        answer = await client.post(f"/queues/{DLQ}/re-drive", data=said)
        where = answer.headers["location"]
        await client.get(f"{where}/events")
        review = await client.get(where)
        assert review.status_code == 200
        assert "the cause is repaired" in review.text
