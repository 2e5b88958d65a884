"""Virtual time with real sockets: pending answers are awaited, idle connections are not."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import httpx

from hopback import App
from hopback.broker.embedded import run_virtual, virtual_time
from hopback.testing import AppTest, Tally, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


class _Slow(BaseHTTPRequestHandler):
    """Answers in two parts, each after a real moment: as a service in another process does."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        threading.Event().wait(0.1)
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"do")
        self.wfile.flush()
        threading.Event().wait(0.01)
        self.wfile.write(b"ne")

    def log_message(self, *_: object) -> None:
        """Do not log."""


@contextmanager
def _service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Slow) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@in_virtual_time
async def test_handler_may_call_service_in_virtual_time() -> None:
    app, said = App("shop"), list[str]()
    with _service() as url:
        async with httpx.AsyncClient(timeout=5) as client:

            @app.handler("orders", retry=["30m"])
            async def handle(order: dict[str, int]) -> None:
                answer = await client.get(url)
                said.append(answer.text)
                if len(said) == 1:
                    raise ConnectionError("once more")

            async with AppTest(app) as test:
                await test.publish("orders", {"id": 1})
                # The connection of the first run is still open, and half an hour passes at once.
                assert await test.drain() == Tally(done=1, retried=1)
    assert said == ["done", "done"]


def test_idle_connection_does_not_stop_virtual_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(virtual_time, "_ANSWER_S", None)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            _, writer = await asyncio.open_connection(*server.getsockname())
            await asyncio.sleep(86_400)
            writer.close()

    run_virtual(main())


def test_peer_that_never_answers_is_awaited_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(virtual_time, "_ANSWER_S", 0.01)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            _, writer = await asyncio.open_connection(*server.getsockname())
            writer.write(b"a line of a log")
            await asyncio.sleep(86_400)
            monkeypatch.setattr(virtual_time, "_ANSWER_S", None)
            writer.write(b"another one")
            await asyncio.sleep(86_400)
            writer.close()

    run_virtual(main())


@in_virtual_time
async def test_both_ends_in_virtual_loop_follow_its_time() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        await asyncio.sleep(60)
        writer.write(b"later\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        began = loop.time()
        writer.write(b"now\n")
        assert await reader.readline() == b"later\n"
        assert loop.time() - began == 60
        writer.close()
