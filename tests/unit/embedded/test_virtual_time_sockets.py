"""Virtual time beside real sockets: what is on its way is waited for, what is only open is not."""

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
        """Say nothing."""


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
async def test_a_handler_may_ask_a_service_in_virtual_time() -> None:
    """The answer takes real time and no virtual time: the timeout of the client does not strike."""
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


def test_a_connection_that_is_only_open_does_not_hold_time_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody owes anything on it: were it waited for, this would wait forever."""
    monkeypatch.setattr(virtual_time, "_ANSWER_S", None)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            _, writer = await asyncio.open_connection(*server.getsockname())
            await asyncio.sleep(86_400)
            writer.close()

    run_virtual(main())


def test_a_peer_that_never_answers_is_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may only listen, as a log does: time goes on after a real moment."""
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
async def test_both_ends_in_the_loop_follow_its_time() -> None:
    """A server of the test may take virtual minutes: the client's own clock is the same."""

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
