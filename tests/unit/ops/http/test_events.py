"""Streams whose reader is gone: their content ends by itself, and the database is left in order."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from hopback.ops.http.events import StreamedResponse
from hopback.store.database import open_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_SCOPE = {"type": "http", "asgi": {"spec_version": "2.3"}}  # as uvicorn says it


async def _read_and_leave(content: AsyncIterator[bytes], turns: int = 0) -> None:
    """A reader who closes the page so many turns of the loop after the first piece."""
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


async def test_content_cleans_up_when_its_reader_is_gone() -> None:
    """It is cancelled once: what it does then is not cancelled, and is waited for."""
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


async def test_a_page_closed_amid_a_database_call_leaves_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whenever it is closed: no task is left behind, no connection is lost with an error."""
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


async def test_an_error_of_the_content_is_not_lost() -> None:
    """What goes wrong while it cleans up is told, as what goes wrong before."""

    async def content() -> AsyncIterator[bytes]:
        yield b"first"
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("amid cleaning up")

    with pytest.raises(LookupError, match="amid cleaning up"):
        await _read_and_leave(content())
