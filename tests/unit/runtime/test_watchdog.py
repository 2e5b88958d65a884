"""A blocked event loop is detected, and probes are answered meanwhile."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from hopback.clock import ManualClock
from hopback.endpoint import Response
from hopback.observe.logs import LogBridge, TextLog
from hopback.runtime import watchdog as module
from hopback.runtime.watchdog import ThreadEndpoint, Watchdog

if TYPE_CHECKING:
    from hopback.endpoint import Request


class _Heard(logging.Handler):
    """Lets the loop go on when the watchdog has spoken."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.spoken = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.spoken.set()


def _block(until: threading.Event) -> None:
    """A blocking call in a handler."""
    assert until.wait(30)


@pytest.mark.slow
async def test_blocked_loop_is_logged_with_line_and_stack() -> None:
    """The message names the task, the line of the application and the remedy."""
    heard = _Heard()
    logger = logging.getLogger("hopback.runtime")
    logger.addHandler(heard)
    try:
        with Watchdog():

            async def handle() -> None:
                _block(heard.spoken)

            await asyncio.create_task(handle(), name="hopback orders")
    finally:
        logger.removeHandler(heard)
    (record,) = heard.records
    message = record.getMessage()
    assert "the event loop has been blocked for " in message
    assert "in hopback orders, at " in message
    assert f"{__file__}, line " in message
    stream = io.StringIO()
    LogBridge(TextLog(ManualClock(), stream=stream)).emit(record)
    assert "  |     _block(heard.spoken)" in stream.getvalue().splitlines()


async def test_running_loop_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with Watchdog() as watchdog:
        for _ in range(100):
            await asyncio.sleep(0)
        assert watchdog.blocked_seconds < 1
    assert caplog.messages == []


def _get(address: tuple[str, int], path: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


@pytest.mark.slow
async def test_probes_are_answered_while_loop_is_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service is alive and not ready, and after a minute not alive either."""

    async def respond(request: Request) -> Response:
        return Response(HTTPStatus.OK, b'{"from": "the loop"}')

    with Watchdog() as watchdog:
        endpoint = ThreadEndpoint(respond, watchdog)
        address = await endpoint.open("127.0.0.1", 0)
        asked, found = threading.Event(), list[tuple[int, dict[str, Any]]]()

        def ask() -> None:
            found.append(_get(address, "/healthz"))
            found.append(_get(address, "/readyz"))
            monkeypatch.setattr(module, "_DEAD_S", 0.5)
            found.append(_get(address, "/healthz"))
            asked.set()

        threading.Thread(target=ask).start()
        _block(asked)
        again = await asyncio.to_thread(_get, address, "/healthz")
        await endpoint.close()
    assert [status for status, _ in found] == [200, 503, 503]
    assert found[0][1]["ok"] is True
    assert "the event loop has been blocked for" in found[1][1]["reasons"][0]
    assert again == (200, {"from": "the loop"})


async def test_occupied_probe_port_raises_os_error() -> None:
    async def respond(request: Request) -> Response:
        return Response(HTTPStatus.OK)

    with Watchdog() as watchdog:
        first = ThreadEndpoint(respond, watchdog)
        address = await first.open("127.0.0.1", 0)
        second = ThreadEndpoint(respond, watchdog)
        with pytest.raises(OSError, match="address already in use"):
            await second.open(*address)
        await second.close()
        await first.close()
