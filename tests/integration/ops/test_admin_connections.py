"""Idle and excessive connections to the admin service over real sockets."""

from __future__ import annotations

import asyncio
import select
import signal
import socket
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from hopback.ops.http.server import Timeouts, serve
from hopback.ops.http.settings import parse_settings
from tests.harness.seeded import seeded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_PATIENCE_S = 30
_SHORT = Timeouts(head_s=0.3, idle_s=0.3, stalled_s=0.3)


@asynccontextmanager
async def _run_service(folder: Path, timeouts: Timeouts, **limits: float) -> AsyncIterator[int]:
    """The service on a free port."""
    known = parse_settings({"limits": limits}, {}, "test")
    where: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with seeded(folder, settings=known) as service:
        running = asyncio.create_task(
            serve(
                service.asgi,
                port=0,
                on_ready=lambda _host, port: where.set_result(port),
                timeouts=timeouts,
            )
        )
        try:
            yield await where
        finally:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C ends it
            await running


async def _answer(port: int, sent: bytes) -> bytes:
    """Everything that comes until the service hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    async with asyncio.timeout(_PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return answer


_HEAD = b"POST /admin/dlq/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "first"),
    [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", b"HTTP/1.1 408"),
        (_HEAD + b"Content-Length: 100\r\n\r\n{", b"HTTP/1.1 408"),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"HTTP/1.1 200"),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /h", b"HTTP/1.1 200"),
    ],
    ids=["silent", "half a head", "half a body", "idle after an answer", "half a second head"],
)
async def test_incomplete_request_times_out_with_408(
    tmp_path: Path, sent: bytes, first: bytes
) -> None:
    """A connection without any request is closed without a response."""
    async with _run_service(tmp_path, _SHORT, request_seconds=0.3) as port:
        answer = await _answer(port, sent)
    assert answer.startswith(first)
    assert bool(answer) == bool(first)


async def test_slow_header_bytes_do_not_extend_request_timeout(tmp_path: Path) -> None:
    """The timeout starts with the first byte."""
    async with _run_service(tmp_path, _SHORT, request_seconds=0.3) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        reading = asyncio.create_task(reader.read())
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        async with asyncio.timeout(_PATIENCE_S):
            while not reading.done():
                writer.write(b"a")
                await asyncio.wait([reading], timeout=0.02)
        # A byte that crosses the server's close resets the connection, and the 408 may be lost with it.
        with suppress(ConnectionResetError):
            assert (await reading).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_open_event_stream_is_not_timed_out(tmp_path: Path) -> None:
    async with _run_service(tmp_path, _SHORT, request_seconds=0.3) as port:
        reader, writer = await _stream(port)
        assert b" 200 " in await reader.readline()
        hung_up = asyncio.create_task(reader.read())
        await asyncio.wait([hung_up], timeout=1.0)
        assert not hung_up.done()
        writer.close()
        await hung_up


async def _stream(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return reader, writer


@pytest.mark.parametrize(
    "limits",
    [{"event_streams_per_caller": 3}, {"event_streams": 3}],
    ids=["of one caller", "of all together"],
)
async def test_fourth_event_stream_is_429_until_one_closes(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    async with _run_service(tmp_path, Timeouts(), **limits) as port, AsyncExitStack() as stack:
        opened = []
        for _ in range(3):
            reader, writer = await _stream(port)
            stack.callback(writer.close)
            assert b" 200 " in await reader.readline()
            opened.append(writer)
        reader, writer = await _stream(port)
        assert b" 429 " in await reader.readline()
        writer.close()
        opened[0].close()
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                reader, writer = await _stream(port)
                status = await reader.readline()
                writer.close()
                if b" 200 " in status:
                    break
                await asyncio.sleep(0.05)


async def test_client_that_reads_no_response_is_disconnected(tmp_path: Path) -> None:
    """It requests more than the buffers hold."""
    asked = b"GET /static/vendor/cytoscape.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    async with _run_service(tmp_path, _SHORT) as port:
        caller = socket.socket()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.connect(("127.0.0.1", port))
        caller.setblocking(False)
        caller.send(asked * 100)
        gone = select.poll()
        gone.register(caller, select.POLLHUP | select.POLLERR)
        assert await asyncio.to_thread(gone.poll, _PATIENCE_S * 1000)
        caller.close()
