"""Streams whose reader is gone: their content ends by itself, and the database is left in order."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from hopback.ops.http.events import EventStreams, StreamedResponse
from hopback.ops.http.services import NOBODY
from hopback.ops.http.settings import RequestLimits
from hopback.store.database import open_database
from hopback.testing import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

_SCOPE = {"type": "http", "asgi": {"spec_version": "2.3"}}  # as in uvicorn's log


async def _read_and_leave(content: AsyncIterator[bytes], turns: int = 0) -> None:
    """A reader that disconnects some turns of the event loop after the first chunk."""
    came = asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("body"):
            came.set()

    async def receive() -> Any:
        await came.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    await StreamedResponse(content)(_SCOPE, receive, send)


async def test_stream_cleans_up_when_reader_disconnects() -> None:
    """It is cancelled once. Its cleanup is not cancelled and is awaited."""
    told: list[str] = []

    async def content() -> AsyncIterator[bytes]:
        yield b"first"
        try:
            await asyncio.Event().wait()
        finally:
            told.append("cancelled")
            for _ in range(5):
                await asyncio.sleep(0)
            told.append("cleaned up")

    await _read_and_leave(content())
    assert told == ["cancelled", "cleaned up"]


async def test_page_closed_during_database_call_leaves_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No task and no connection is left behind."""
    engine = open_database(f"sqlite:///{tmp_path / 'jobs.db'}")
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: told.append(said["message"]))

    async def content() -> AsyncIterator[bytes]:
        yield b"first"
        while True:
            async with engine.connect() as connection:
                await connection.execute(text("SELECT 1"))

    for turns in range(40):
        await _read_and_leave(content(), turns)
    await engine.dispose()
    gc.collect()
    assert told == []
    assert [entry.message for entry in caplog.records] == []


async def test_error_during_stream_cleanup_is_raised() -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"first"
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("amid cleaning up")

    with pytest.raises(LookupError, match="amid cleaning up"):
        await _read_and_leave(content())


async def _never() -> Any:
    await asyncio.Event().wait()


@in_virtual_time
async def test_silent_stream_sends_a_comment_every_15_seconds() -> None:
    """Comments count as events for the caller of `on_event`."""
    told, sent = list[str](), list[bytes]()

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await asyncio.sleep(40)
        yield b"last"

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    streams = EventStreams(RequestLimits())
    answer = streams.open(events(), NOBODY, on_event=lambda: told.append("event"))
    await answer(_SCOPE, _never, send)
    comment = b": still here\n\n"
    assert [part for part in sent if part] == [b"first", comment, comment, b"last"]
    assert told == ["event"] * 4


async def test_event_stream_cleans_up_when_reader_disconnects() -> None:
    told: list[str] = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("cleaned up")

    came = asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("body"):
            came.set()

    async def receive() -> Any:
        await came.wait()
        return {"type": "http.disconnect"}

    streams = EventStreams(RequestLimits(event_streams=1))
    for _ in range(2):  # the first one has ended
        came.clear()
        await streams.open(events(), NOBODY)(_SCOPE, receive, send)
    assert told == ["cleaned up"] * 2
