"""The token of a server's client goes to that server only, and an answer without an end is cut off."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import httpx
import pytest

import hopback.ops.client
from hopback.cli.app import run
from hopback.errors import ServerFailed
from hopback.ops.client import RemoteDeadLetters

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@contextmanager
def _proxy() -> Iterator[tuple[str, list[str]]]:
    """An HTTP proxy that refuses everything, and the credentials that it was shown."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_error(502)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.socket
def test_token_for_a_plain_server_does_not_go_through_a_proxy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with _proxy() as (address, seen):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, address)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        words = ["dlq", "ls", "--server", "http://hopback.invalid", "--token", "secret"]
        assert run(words) == 7
    assert seen == []
    said = capsys.readouterr().err
    assert "Warning: the token is sent to hopback.invalid without encryption" in said
    assert "secret" not in said


@pytest.mark.socket
@pytest.mark.parametrize(
    "arguments",
    [
        ["--server", "http://127.0.0.1:1", "--token", "secret"],
        ["--server", "http://hopback.invalid"],
        ["--server", "https://hopback.invalid", "--token", "secret"],
    ],
)
def test_protected_and_missing_tokens_give_no_warning(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOPBACK_TOKEN", raising=False)
    assert run(["dlq", "ls", *arguments]) == 7
    assert "Warning" not in capsys.readouterr().err


class _Endless(httpx.AsyncByteStream):
    """A body that never ends. `read` counts its parts."""

    def __init__(self) -> None:
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.read += 1
            assert self.read < 1000, "it was read on"
            yield b"x" * 65536


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_answer_without_an_end_is_cut_off(
    status: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hopback.ops.client, "_MOST_BYTES", 1 << 20)
    body = _Endless()
    transport = httpx.MockTransport(
        lambda _: httpx.Response(status, headers={"content-type": kind}, stream=body)
    )
    async with RemoteDeadLetters("http://localhost", transport=transport) as client:
        for call in (client.queues(), client.open_session("orders.dlq")):
            body.read = 0
            with pytest.raises(ServerFailed, match="sent more than 1 MiB"):
                await call
        body.read = 0
        with pytest.raises(ServerFailed, match="sent more than 1 MiB"):
            async for _ in client.export("orders.dlq"):
                pass
