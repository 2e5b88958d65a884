"""Make ten HTTP round trips for each message, as in a handler that waits for another process.

`python -m benchmarks.clients.round_trips` is this process. It responds to all requests with a few
bytes.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["AT_ONCE", "TRIPS", "RoundTrips", "round_trips"]

TRIPS = 10
AT_ONCE = 100  # the concurrency of the handler in the application
_REQUEST = b"GET /stock/4711 HTTP/1.1\r\nHost: localhost\r\n\r\n"
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n42"


class RoundTrips:
    """A pool of connections to the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def make(self) -> None:
        """Send ten requests, one after the other."""
        connection = self._free.pop() if self._free else await self._open()
        reader, writer = connection
        for _ in range(TRIPS):
            writer.write(_REQUEST)
            await reader.readexactly(len(_ANSWER))
        self._free.append(connection)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


@asynccontextmanager
async def round_trips() -> AsyncIterator[RoundTrips]:
    """Run the server as a process and yield connections to it."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, stdout=asyncio.subprocess.PIPE
    )
    try:
        if server.stdout is None:
            raise RuntimeError("expected the server's output, got none")
        trips = RoundTrips(int(await server.stdout.readline()))
        yield trips
        trips.close()
    finally:
        server.kill()
        await server.wait()


class _Answers(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(_ANSWER * data.count(b"\r\n\r\n"))  # type: ignore[attr-defined]


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Answers, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
