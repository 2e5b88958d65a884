"""A small TCP proxy between a client and its broker that can cut, stall and refuse."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Proxy"]


class Proxy:
    """Forwards to the broker of an AMQP URL. All cuts are abrupt (a reset), as in real life."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5672)
        self._login = parts.netloc.rpartition("@")[0]
        self._path = parts.path
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._budget: int | None = None
        self.refusing = False
        self.accepted = 0
        self.delay_s = 0.0
        """Seconds for which bytes are collected before they pass together."""
        self.on_bytes: Callable[[bytes], object] = lambda _data: None
        """Called with the bytes of either direction before they pass."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._flowing.set()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The broker's URL, with this proxy's address."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"amqp://{self._login}@{host}:{port}{self._path}"

    def cut(self) -> None:
        """Reset every connection now."""
        for writer in list(self._writers):
            writer.transport.abort()

    def cut_after(self, count: int) -> None:
        """Reset every connection once `count` more bytes have passed, in whichever direction."""
        self._budget = count

    def stall(self) -> None:
        """Stop all traffic until `resume`. The connections stay open."""
        self._flowing.clear()

    def resume(self) -> None:
        """Let everything through again."""
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refusing:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._forward(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while True:
                await asyncio.sleep(self.delay_s)
                if not (data := await source.read(16_384)):
                    break
                self.on_bytes(data)
                await self._flowing.wait()
                allowed = self._spend(len(data))
                sink.write(data[:allowed])
                await sink.drain()
                if allowed < len(data):
                    self.cut()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            if not sink.is_closing():
                sink.close()

    def _spend(self, size: int) -> int:
        """How many of these bytes still pass before the cut that was asked for."""
        if self._budget is None:
            return size
        allowed = min(size, self._budget)
        self._budget -= allowed
        if allowed < size:
            self._budget = None
        return allowed
