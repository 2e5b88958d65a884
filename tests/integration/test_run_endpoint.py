"""The HTTP endpoint on a real socket: answers and limits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from hopback.endpoint import Endpoint, Request, Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def _echo(request: Request) -> Response:
    told = f"{request.method} {request.path} {request.headers.get('x-one', '')} {request.peer}"
    told += f" {request.query}" if request.query else ""
    told += f" {request.body.decode()}" if request.body else ""
    return Response(HTTPStatus.OK, told.encode(), "text/plain")


@asynccontextmanager
async def _open(*, patience: float = 5.0) -> AsyncIterator[int]:
    endpoint = Endpoint(_echo, timeout=patience)
    _, port = await endpoint.open("127.0.0.1", 0)
    try:
        yield port
    finally:
        await endpoint.close()


async def _send(port: int, *parts: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await reader.read()
    finally:
        writer.close()


async def test_request_is_answered_and_connection_closed() -> None:
    async with _open() as port:
        answer = await _send(port, b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nX-ONE:  two \r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Connection: close" in head
    assert body == b"GET /a two 127.0.0.1 b=c"
    assert f"Content-Length: {len(body)}".encode() in head


async def test_head_has_no_body_and_post_may_have_one() -> None:
    async with _open() as port:
        head = await _send(port, b"HEAD /a HTTP/1.1\r\n\r\n")
        post = await _send(port, b"POST /a HTTP/1.1\r\nContent-Length: 4\r\n\r\n", b"abcd")
    assert head.endswith(b"\r\n\r\n")
    assert post.endswith(b"POST /a  127.0.0.1 abcd")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET /a\r\n\r\n", 400),
        (b"GET a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/2\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\n x: folded\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /a HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"GET /a HTTP/1.1\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_invalid_http_requests_are_refused(sent: bytes, status: int) -> None:
    async with _open() as port:
        answer = await _send(port, sent)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_silent_http_client_is_dropped() -> None:
    async with _open(patience=0.05) as port:
        assert await _send(port, b"GET /a") == b""
        assert (await _send(port, b"GET /a HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_close_drops_pending_http_clients() -> None:
    """No task is left."""
    async with _open(patience=60) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await _send(port, b"GET /a HTTP/1.1\r\n\r\n")
        before = asyncio.all_tasks()
    left = {task for task in before if not task.done()} - {asyncio.current_task()}
    writer.close()
    assert left == set()


async def test_half_open_requests_do_not_block_probes() -> None:
    """70 clients never finish their request, and 70 more while probes are answered."""
    async with _open(patience=60) as port:
        silent = []
        for _ in range(14):
            for _ in range(10):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /healthz HTTP/1.1\r\n")
                await writer.drain()
                silent.append(writer)
            answer = await _send(port, b"GET /healthz HTTP/1.1\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
        for writer in silent:
            writer.close()


async def test_replaced_and_open_connections_are_not_logged_as_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """70 silent clients: six are replaced, the others are open when the endpoint closes."""
    async with _open(patience=60) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(70)]
        assert (await _send(port, b"GET /a HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    await asyncio.sleep(0)
    for _, writer in silent:
        writer.close()
    assert caplog.records == []


async def test_clients_that_do_not_read_do_not_block_probes() -> None:
    """70 scrapes fill the buffers of their sockets."""

    async def large(request: Request) -> Response:
        return Response(HTTPStatus.OK, b"x" * (10_000_000 if request.path == "/metrics" else 1))

    endpoint = Endpoint(large, timeout=60)
    _, port = await endpoint.open("127.0.0.1", 0)
    silent = []
    for _ in range(70):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await reader.readexactly(1)
        silent.append(writer)
    answer = await _send(port, b"GET /healthz HTTP/1.1\r\n\r\n")
    for writer in silent:
        writer.close()
    await endpoint.close()
    assert answer.startswith(b"HTTP/1.1 200")
