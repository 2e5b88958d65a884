"""A minimal HTTP server for health probes, metrics and commands.

The server runs on the caller's event loop. Each connection handles a single request. The size and
duration of requests and the number of connections are limited. An ASGI server is not used, because
it would add a dependency and install its own signal handlers.
"""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

# bytes; the maximum size of the request head, and the default limit for the body
_MOST_BYTES = 16_384
_MOST_CONNECTIONS = 64
"""The default limit for concurrent connections. When it is reached, the oldest connection that is
waiting for its client is closed, so that idle clients cannot block health probes. If there is no
such connection, the server responds with 503.
"""


def is_loopback(address: str) -> bool:
    """Return True if `address` is a loopback address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. Header names are lowercase. Path and query are percent-encoded."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    query: str = ""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    status: HTTPStatus
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, *, with_body: bool = True) -> bytes:
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            f"Content-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
            f"{more}Connection: close\r\n\r\n"
        )
        return head.encode("ascii") + (self.body if with_body else b"")


Respond: TypeAlias = "Callable[[Request], Awaitable[Response]]"


class _Unreadable(Exception):
    """Raised if a request cannot be parsed. The response has the HTTP status `status`."""

    def __init__(self, status: HTTPStatus) -> None:
        self.status = status
        super().__init__(status.phrase)


class Endpoint:
    """A small HTTP server.

    Args:
        respond: Called for each request.
        timeout: Maximum time for a request and its response, in seconds.
        most_body: Maximum size of a request body in bytes.
        most_connections: Maximum number of concurrent connections.
    """

    def __init__(
        self,
        respond: Respond,
        *,
        timeout: float = 5.0,
        most_body: int = _MOST_BYTES,
        most_connections: int = _MOST_CONNECTIONS,
    ) -> None:
        self._respond = respond
        self._timeout = timeout
        self._most_body = most_body
        self._most_connections = most_connections
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._awaiting_client: dict[asyncio.Task[None], None] = {}
        """Connections waiting for their client, oldest first."""

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Start listening and return the host and port.

        Pass port 0 to use any free port.

        Raises:
            OSError: If the port is already in use.
        """
        self._server = await asyncio.start_server(
            self._on_connection, host, port, limit=_MOST_BYTES
        )
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def open_unix(self, path: Path) -> None:
        """Start listening on a Unix socket."""
        self._server = await asyncio.start_unix_server(self._on_connection, path, limit=_MOST_BYTES)

    async def close(self) -> None:
        """Stop listening and cancel pending requests."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - the server calls it in a task
        self._serving.add(task)
        self._awaiting_client[task] = None
        try:
            async with asyncio.timeout(self._timeout):
                writer.write(await self._answer(reader, writer, task))
                self._awaiting_client[task] = None
                await writer.drain()
        except (TimeoutError, OSError):
            pass  # the client has disconnected or is too slow
        except asyncio.CancelledError:
            # The connection was replaced by a newer one, or the server is closing. Before Python
            # 3.12, asyncio logs a traceback if the task of a connection is cancelled.
            pass
        finally:
            self._serving.discard(task)
            self._awaiting_client.pop(task, None)
            with suppress(OSError):
                writer.close()

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        task: asyncio.Task[None],
    ) -> bytes:
        if len(self._serving) > self._most_connections:
            oldest = next(iter(self._awaiting_client))
            if oldest is task:
                return Response(HTTPStatus.SERVICE_UNAVAILABLE).encode()
            del self._awaiting_client[oldest]
            self._serving.discard(oldest)
            oldest.cancel()
        try:
            request = await _read(reader, writer, self._most_body)
        except _Unreadable as unreadable:
            return Response(unreadable.status).encode()
        self._awaiting_client.pop(task, None)
        response = await self._respond(request)
        return response.encode(with_body=request.method != "HEAD")


async def _read(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most_body: int
) -> Request:
    """Read a request from the client.

    The body is always read, because closing the connection early could cut off the response.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Unreadable(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    except asyncio.IncompleteReadError:
        raise _Unreadable(HTTPStatus.BAD_REQUEST) from None
    peer = writer.get_extra_info("peername")
    request = _parse(head, str(peer[0]) if peer else "")
    length = request.headers.get("content-length", "0")
    if "transfer-encoding" in request.headers or not length.isdecimal():
        raise _Unreadable(HTTPStatus.BAD_REQUEST)
    if len(length) > 12 or int(length) > most_body:
        raise _Unreadable(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    try:
        body = await reader.readexactly(int(length))
    except asyncio.IncompleteReadError:
        raise _Unreadable(HTTPStatus.BAD_REQUEST) from None
    return replace(request, body=body)


def _parse(head: bytes, peer: str) -> Request:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise _Unreadable(HTTPStatus.BAD_REQUEST)
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise _Unreadable(HTTPStatus.BAD_REQUEST)
        headers[name.lower()] = value.strip()
    path, _, query = words[1].partition("?")
    return Request(words[0], path, headers, peer, query)
