"""Answers that go on for a while, and end cleanly when their reader is gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

__all__ = ["StreamedResponse"]


class StreamedResponse(StreamingResponse):
    """A stream whose content is cancelled once when its reader is gone, and waited for.

    Starlette cancels what streams anew on every turn of the loop, its cleaning up as well: a database
    call that is cancelled so loses its connection, with a traceback and a task that never ends.
    """

    _streaming: asyncio.Task[None] | None = None

    async def stream_response(self, send: Send) -> None:
        """Send the content, by a task of its own that whoever cancels this one does not reach."""
        self._streaming = asyncio.create_task(super().stream_response(send), name="streaming")
        await asyncio.shield(self._streaming)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; when it is over, so is the content."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            work = self._streaming
            if work is not None and not work.done():
                work.cancel()
                await asyncio.wait({work})
                if not work.cancelled():
                    work.result()
