"""HTTP push against a real server: statuses, timeouts and safe headers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, HopbackError, Message, Service
from hopback.broker import EmbeddedBroker
from hopback.designs import DESIGNS
from hopback.errors import InvalidDeclaration
from hopback.runtime import Properties
from hopback.runtime.push import PushTarget
from hopback.testing import AppTest, Tally
from hopback.topology.plan import LocalWait
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Reply = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class _Endpoint:
    """An HTTP endpoint that records requests and returns configured answers."""

    def __init__(self, reply: Reply) -> None:
        self.requests: list[bytes] = []
        self.at_once = 0
        self.most_at_once = 0
        self.url = ""
        self.tasks: set[asyncio.Task[None] | None] = set()
        """Tasks of open connections. No other reference keeps a task alive that waits forever."""
        self._reply = reply

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection."""
        self.tasks.add(asyncio.current_task())
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.lower().split(b"\r\n")
                lengths = [line for line in lines if line.startswith(b"content-length")]
                length = int(lengths[0].split(b":")[1]) if lengths else 0
                request = head + await reader.readexactly(length)
                self.requests.append(request)
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                try:
                    await self._reply(request, writer)
                    await writer.drain()
                finally:
                    self.at_once -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def _status(status: int, *headers: str) -> Reply:
    async def reply(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(_answer(status, *headers))

    return reply


def _answer(status: int, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", "content-length: 0", *headers, "", ""]
    return "\r\n".join(lines).encode()


@asynccontextmanager
async def _endpoint(reply: Reply) -> AsyncIterator[_Endpoint]:
    endpoint = _Endpoint(reply)
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    endpoint.url = f"http://{host}:{port}/events"
    try:
        yield endpoint
    finally:
        server.close()
        for task in endpoint.tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*filter(None, endpoint.tasks), return_exceptions=True)


def _push_app(url: str, **options: Any) -> App:
    app = App("bus")
    app.queue("events", retry=["10ms"], attempts=2)
    app.push("events", url, **options)
    return app


@pytest.mark.parametrize(
    ("status", "tally"),
    [
        (200, Tally(done=1)),
        (204, Tally(done=1)),
        (301, Tally(retried=1, parked=1)),
        (400, Tally(retried=1, parked=1)),
        (404, Tally(retried=1, parked=1)),
        (409, Tally(retried=1, parked=1)),
        (429, Tally(retried=1, parked=1)),
        (500, Tally(retried=1, parked=1)),
        (503, Tally(retried=1, parked=1)),
    ],
)
async def test_status_of_push_is_the_outcome(status: int, tally: Tally) -> None:
    """2xx is done. All others except 425 are retried and then parked."""
    async with _endpoint(_status(status)) as endpoint, AppTest(_push_app(endpoint.url)) as test:
        await test.publish("events", {"id": 1})
        assert await test.drain() == tally
        if tally.parked:
            test.assert_parked("events", reason=f"HTTP {status}")
    assert len(endpoint.requests) == tally.done + tally.retried + tally.parked


async def test_push_request_has_body_and_message_headers() -> None:
    """Ids, type, routing key and attempt are headers."""
    async with _endpoint(_status(500)) as endpoint, AppTest(_push_app(endpoint.url)) as test:
        await test.publish(
            "events", {"id": 1}, message_id="m1", correlation_id="c1", message_type="t1"
        )
        await test.drain()
    first, second = (request.decode() for request in endpoint.requests)
    assert first.startswith("POST /events HTTP/1.1\r\n")
    assert first.endswith('\r\n\r\n{"id":1}')
    for line in ("x-message-id: m1", "x-correlation-id: c1", "x-message-type: t1", "x-attempt: 1"):
        assert f"\r\n{line}\r\n" in first
    assert "\r\nx-attempt: 2\r\n" in second


async def test_push_logs_no_line_per_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """httpx would log one at info. An explicitly set level is kept."""
    logger = logging.getLogger("httpx")
    before = logger.level
    try:
        logger.setLevel(logging.NOTSET)
        caplog.set_level(logging.INFO)
        await _post_once()
        assert [one.name for one in caplog.records if one.name.startswith("http")] == []
        logger.setLevel(logging.INFO)
        await _post_once()
        assert "httpx" in {one.name for one in caplog.records}
    finally:
        logger.setLevel(before)


async def _post_once() -> None:
    async with _endpoint(_status(200)) as endpoint, AppTest(_push_app(endpoint.url)) as test:
        await test.publish("events", {})
        assert await test.drain() == Tally(done=1)
    assert len(endpoint.requests) == 1


async def test_message_cannot_inject_push_header() -> None:
    """Line breaks, other alphabets and long values are omitted. Message headers are never sent."""
    evil = "a\r\nx-evil: 1"
    properties = Properties(
        message_id=evil,
        correlation_id="grün",
        type="a\nb",
        content_type="text/plain\r\nx-evil: 1",
        headers={
            "host": "elsewhere",
            "authorization": "secret",
            "traceparent": evil,
            "x-evil": "1",
        },
    )
    async with _endpoint(_status(200)) as endpoint, AppTest(_push_app(endpoint.url)) as test:
        connection = await test.broker.connect("producer")
        channel = await connection.open_channel()
        await channel.publish(Message("", "events", b"body", properties))
        await connection.close()
        assert await test.drain() == Tally(done=1)
    [request] = endpoint.requests
    head = request.partition(b"\r\n\r\n")[0].lower()
    for word in (
        b"evil",
        b"secret",
        b"elsewhere",
        b"correlation",
        b"x-message-type",
        b"traceparent",
    ):
        assert word not in head


async def test_push_follows_no_redirects_and_keeps_no_cookies() -> None:
    async with _endpoint(_status(200)) as elsewhere:
        reply = _status(302, f"location: {elsewhere.url}", "set-cookie: session=1")
        async with _endpoint(reply) as endpoint, AppTest(_push_app(endpoint.url)) as test:
            await test.publish("events", {})
            assert await test.drain() == Tally(retried=1, parked=1)
    assert elsewhere.requests == []
    assert len(endpoint.requests) == 2
    assert b"cookie" not in endpoint.requests[1].lower()


async def _never(_request: bytes, writer: asyncio.StreamWriter) -> None:
    await writer.wait_closed()


async def _drip(_request: bytes, writer: asyncio.StreamWriter) -> None:
    """An answer that never ends, byte by byte: no single read times out."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("reply", [_never, _drip])
async def test_push_timeout_covers_whole_answer(reply: Reply) -> None:
    async with _endpoint(reply) as endpoint, AppTest(_push_app(endpoint.url, timeout=0.5)) as test:
        await test.publish("events", {})
        assert await test.drain() == Tally(retried=1, parked=1)
        test.assert_parked("events", reason="no answer within 0.5 s")


async def test_endless_push_answer_is_not_read() -> None:
    """Only its status counts."""
    sent = 0

    async def flood(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        nonlocal sent
        while not writer.is_closing():
            writer.write(b"x" * 65_536)
            sent += 65_536
            await writer.drain()

    async with _endpoint(flood) as endpoint, AppTest(_push_app(endpoint.url)) as test:
        await test.publish("events", {})
        assert await test.drain() == Tally(done=1)
    assert sent < 50_000_000


async def test_refused_push_connection_is_retried() -> None:
    async with _endpoint(_status(200)) as endpoint:
        url = endpoint.url
    async with AppTest(_push_app(url)) as test:
        await test.publish("events", {})
        assert await test.drain() == Tally(retried=1, parked=1)
        test.assert_parked("events", reason="ConnectError")


async def test_push_concurrency_limits_connections() -> None:
    async def slowly(_request: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02)
        writer.write(_answer(200))

    async with (
        _endpoint(slowly) as endpoint,
        AppTest(_push_app(endpoint.url, concurrency=3)) as test,
    ):
        for _ in range(15):
            await test.publish("events", {})
        assert await test.drain() == Tally(done=15)
    assert endpoint.most_at_once == 3


# --- 425: not due yet -------------------------------------------------------------------------------


def _event_bus(url: str, *, hardened: bool, concurrency: int) -> tuple[App, str]:
    """The event bus with local waits of milliseconds."""
    topology = DESIGNS["event-bus"].build({}, hardened=hardened)
    plan = topology.plans[0]
    if plan.snooze is not None:
        quick = replace(plan, snooze=LocalWait(10, 20))
        topology = replace(topology, plans=(quick, *topology.plans[1:]))
    app = App("event-bus", topology=topology)
    app.push(plan.queue, url, concurrency=concurrency)
    return app, plan.queue


async def test_early_event_is_held_and_requeued_in_faithful_form() -> None:
    """It is not counted as an attempt."""
    asked = 0

    async def early(_request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.write(_answer(425 if asked <= 3 else 200))

    async with _endpoint(early) as endpoint:
        app, queue = _event_bus(endpoint.url, hardened=False, concurrency=4)
        async with AppTest(app) as test:
            await test.publish(queue, {"processAfterDelayMs": 60_000})
            assert await test.drain() == Tally(snoozed=3, done=1)
            snoozed = [one.fields["delay_ms"] for one in test.find_events("delivery.snoozed")]
    assert all(10 <= delay <= 30 for delay in snoozed)
    assert asked == 4


async def test_held_events_use_at_most_half_of_slots() -> None:
    async def early(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(_answer(425 if b"early" in request else 200))

    async with _endpoint(early) as endpoint:
        app, queue = _event_bus(endpoint.url, hardened=False, concurrency=4)
        broker = EmbeddedBroker()
        async with AppTest(app, broker=broker) as test:
            for _ in range(20):
                await test.publish(queue, {"early": True})
            for _ in range(3):
                await test.publish(queue, {"id": 1})
            await until(lambda: len(test.find_events("delivery.done")) == 3)
            waiting = test.find_events("delivery.snoozed", delay_ms=5000)
            assert waiting, "the rest waits in the retry queue, uncounted"
            assert not test.find_events("delivery.retried")


async def test_early_event_waits_in_retry_queue_in_hardened_form() -> None:
    """A requeue would count as a delivery of a quorum queue."""
    async with _endpoint(_status(425)) as endpoint:
        app, queue = _event_bus(endpoint.url, hardened=True, concurrency=4)
        async with AppTest(app) as test:
            due = json.dumps({"processAfterDelayMs": 1000})
            await test.publish(queue, due)
            await until(lambda: bool(test.find_events("delivery.snoozed")))
            snapshot = test.broker.snapshot()
            waiting = [one for one in snapshot.queues if one.ready and one.name != queue]
            assert len(waiting) == 1
            headers = waiting[0].ready[0].properties.headers
    assert headers["hopback-snoozes"] == 1
    assert headers.get("hopback-attempts", 0) == 0


async def test_missing_push_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    app = App("bus")
    app.queue("events")
    app.push("events", "http://127.0.0.1:1/")
    with pytest.raises(HopbackError, match=r"hopback\[push\]"):
        Service(app, EmbeddedBroker())


async def test_push_sends_configured_headers_token_and_signature() -> None:
    async with _endpoint(_status(200)) as endpoint:
        options = {"headers": {"x-tenant": "north"}, "bearer": "tick", "secret": "hush"}
        app = _push_app(endpoint.url, **options)
        async with AppTest(app, broker=EmbeddedBroker()) as test:
            await test.publish("events", {"order": 1})
            await until(lambda: bool(endpoint.requests))
    head, _, body = endpoint.requests[0].partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert (fields["x-tenant"], fields["authorization"]) == ("north", "Bearer tick")
    said = dict(part.split("=", 1) for part in fields["x-hopback-signature"].split(","))
    mine = hmac.new(b"hush", said["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
    assert said["v1"] == mine
    assert abs(time.time() - int(said["t"])) < 600


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"headers": {"x-message-id": "mine"}}, "headers.x-message-id"),
        ({"headers": {"a b": "c"}}, "headers"),
        ({"headers": {"x-key": "hush\r\nx-more: 1"}}, "headers.x-key"),
        ({"bearer": "hush\n"}, "bearer"),
    ],
)
def test_reserved_push_headers_are_refused(options: dict[str, Any], named: str) -> None:
    """The error does not repeat the value, which may be a key."""
    with pytest.raises(InvalidDeclaration, match=named) as refused:
        PushTarget("http://orders.test/events", **options)
    assert "hush" not in str(refused.value)
