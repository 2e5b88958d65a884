"""Requests that take a server minutes.

The server reports progress, and a client does not time out while the server works. Runs in virtual
time over the real application with a broker whose every answer takes half a minute.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from hopback.errors import CountMismatch, NoSuch, ServerUnavailable
from hopback.ops.client import RemoteDeadLetters
from hopback.ops.contract.requests import (
    RedriveRequest,
    Selection,
    SessionRequest,
    Target,
    TargetKind,
)
from hopback.ops.contract.search import SearchRequest
from hopback.ops.http.app import create_app
from hopback.testing import in_virtual_time
from tests.unit.ops.cli.raffle import DLQ, MAIN, raffle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hopback.ops.contract.values import LookProgress
    from tests.unit.ops.cli.raffle import Raffle

_SLOW_S = 25.0  # seconds per answer of the broker, several are needed per request


class _Line(httpx.AsyncByteStream):
    """The body of a response as it arrives. A chunk that takes longer than the timeout raises."""

    def __init__(
        self, pieces: asyncio.Queue[bytes | None], read_s: float, end: Callable[[], Any]
    ) -> None:
        self._pieces, self._read_s, self._end = pieces, read_s, end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await within(self._read_s, self._pieces.get())) is not None:
            yield piece

    async def aclose(self) -> None:
        await self._end()


async def within(seconds: float | None, waiting: Any) -> Any:
    """Return the result, or raise the timeout error of httpx."""
    try:
        return await asyncio.wait_for(waiting, seconds)
    except TimeoutError:
        raise httpx.ReadTimeout("") from None


class _Transport(httpx.AsyncBaseTransport):
    """Yields response chunks as the application sends them and reports a disconnected client.

    The transport of httpx for applications collects the whole response first and waits without a
    limit.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.accepts = True
        """Whether callers are heard to accept events, as those of an earlier version did not."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        headers = [(name.lower(), value) for name, value in request.headers.raw]
        if not self.accepts:
            headers = [(name, value) for name, value in headers if name != b"accept"]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": request.method, "scheme": "http", "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0], "query_string": request.url.query,
            "headers": headers, "server": ("localhost", 80), "client": ("127.0.0.1", 1), "root_path": "",
        }  # fmt: skip
        sent, hung_up, pieces = False, asyncio.Event(), asyncio.Queue[bytes | None]()
        started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def receive() -> Any:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": content, "more_body": False}
            await hung_up.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                started.set_result(message)
                return
            pieces.put_nowait(message.get("body", b""))
            if not message.get("more_body"):
                pieces.put_nowait(None)

        answering = asyncio.create_task(self._app(scope, receive, send))

        async def end() -> None:
            hung_up.set()
            await asyncio.wait({answering})

        read_s = request.extensions["timeout"]["read"]
        try:
            head = await within(read_s, asyncio.shield(started))
        except BaseException:
            await end()
            raise
        return httpx.Response(
            head["status"], headers=head["headers"], stream=_Line(pieces, read_s, end)
        )


@asynccontextmanager
async def _open_server(count: int) -> AsyncIterator[tuple[Raffle, RemoteDeadLetters, _Transport]]:
    async with raffle(version="3.13") as found:
        app = create_app(found.operations)
        transport = _Transport(app)
        async with RemoteDeadLetters("http://localhost", transport=transport) as remote:
            await found.park(count)
            found.broker.faults.latency = _SLOW_S
            yield found, remote, transport


@in_virtual_time
async def test_deep_session_reports_progress_until_it_opens() -> None:
    """The timeout applies to silence only, and the server sends events."""
    async with _open_server(2500) as (found, remote, _):
        told: list[LookProgress] = []
        began = asyncio.get_running_loop().time()
        session = await remote.open_session(
            DLQ, SessionRequest(limit=10, skip=2490), on_progress=told.append
        )
        assert asyncio.get_running_loop().time() - began > 60.0
        assert (session.skipped, session.held) == (2490, 10)
        assert [(each.queue, each.total) for each in told][:1] == [(DLQ, 2500)]
        assert found.operations.session(session.id).held == 10
        await remote.release(session.id)
        found.broker.faults.latency = 0.0
        assert found.held(DLQ) != []


@in_virtual_time
async def test_client_without_event_stream_gets_only_the_result() -> None:
    """If such a client times out, its messages are returned."""
    async with _open_server(30) as (found, remote, transport):
        transport.accepts = False
        with pytest.raises(ServerUnavailable, match="ReadTimeout"):
            await remote.open_session(DLQ, SessionRequest(limit=10))
        assert found.operations.sessions() == ()
        found.broker.faults.latency = 0.0
        assert (await remote.open_session(DLQ, SessionRequest(limit=30))).held == 30


@in_virtual_time
async def test_disconnected_client_leaves_no_messages_held() -> None:
    for seconds in (0.5, 30.0, 60.0, 90.0):
        async with _open_server(30) as (found, remote, _):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await remote.open_session(DLQ, SessionRequest(limit=30))
            await asyncio.sleep(4 * _SLOW_S)  # the broker hears late that the channel is closed
            found.broker.faults.latency = 0.0
            assert found.operations.sessions() == ()
            assert (await found.operations.queue(DLQ)).depth.ready == 30


@in_virtual_time
async def test_late_refusal_raises_same_error_as_immediate_one() -> None:
    async with _open_server(30) as (_, remote, _transport):
        with pytest.raises(NoSuch, match="nowhere"):
            await remote.open_session("nowhere.dlq", SessionRequest(limit=10))
        asked = RedriveRequest(
            queue=DLQ,
            selection=Selection(filter="error:TimeoutError"),
            reason="the cause is repaired",
            target=Target(TargetKind.QUEUE, routing_key=MAIN),
            expected_count=7,
        )
        with pytest.raises(CountMismatch, match="expected 7"):
            await remote.start(asked)


@in_virtual_time
async def test_plans_surveys_and_searches_wait_while_server_reports_progress() -> None:
    async with _open_server(30) as (found, remote, _):
        target = Target(TargetKind.QUEUE, routing_key=MAIN)
        asked = RedriveRequest(queue=DLQ, selection=Selection(), reason="repaired", target=target)
        assert (await remote.plan(asked)).matching == 30
        surveyed = await remote.errors(survey=True)
        assert sum(one.count for one in surveyed.items) == 30
        async for progress in remote.search(SearchRequest("no-such-word", (DLQ,))):
            last = progress
        assert (last.seen, last.is_over) == (30, True)
        found.broker.faults.latency = 0.0
        assert len(found.held(DLQ)) == 30


@in_virtual_time
async def test_silent_server_raises_server_unavailable() -> None:
    async def silent(_scope: Any, _receive: Any, _send: Any) -> None:
        await asyncio.sleep(3600.0)

    async with RemoteDeadLetters(
        "http://localhost", transport=_Transport(silent), silence_s=5.0
    ) as remote:
        with pytest.raises(ServerUnavailable, match="does not answer"):
            await remote.open_session(DLQ)
