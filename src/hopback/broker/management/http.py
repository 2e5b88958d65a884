"""One bounded, verified HTTP exchange with the management API, and its errors in our words."""

from __future__ import annotations

import asyncio
import json
import ssl
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hopback.errors import (
    ConnectionFailed,
    ManagementError,
    ManagementNotFound,
    ManagementRefused,
)
from hopback.extras import needs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    import httpx

    from hopback.broker.management.address import ManagementAddress

__all__ = ["LIMIT_BYTES", "TIMEOUT_S", "Http", "path"]

TIMEOUT_S = 15.0  # a busy node takes seconds to gather its figures; nobody waits longer at a prompt
# The largest definitions fit well; an endless answer must not fill the memory.
LIMIT_BYTES = 64 * 1024 * 1024
_REASON_CHARACTERS = 300  # enough for a sentence of the broker, too little for a page of HTML


def path(*segments: str) -> str:
    """An API path; every segment is escaped whole, so that the vhost `/` becomes `%2F`."""
    return "/api/" + "/".join(quote(segment, safe="") for segment in segments)


class Http:
    """A connection pool to one management API."""

    def __init__(
        self,
        address: ManagementAddress,
        *,
        timeout_s: float = TIMEOUT_S,
        limit_bytes: int = LIMIT_BYTES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._httpx = _import_httpx()
        self._address = address
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes
        self._client = self._httpx.AsyncClient(
            base_url=address.url,
            auth=(address.user, address.password),
            timeout=timeout_s,
            verify=_tls(address) if address.url.startswith("https") else True,
            follow_redirects=False,
            # A proxy from the environment has no business seeing a broker's credentials.
            trust_env=False,
            transport=transport,
        )

    async def call(
        self,
        method: str,
        where: str,
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (),
    ) -> tuple[int, Any]:
        """Status and decoded answer; any status but 2xx and those in `accept` raises."""
        try:
            async with asyncio.timeout(self._timeout_s):
                status, content = await self._exchange(method, where, body, query)
        except (self._httpx.HTTPError, TimeoutError, OSError) as exc:
            raise ConnectionFailed(self._unreachable(exc)) from exc
        answer = _decode(content, f"{method} {self._address.url}{where}", status)
        if status // 100 != 2 and status not in accept:
            raise self._refusal(method, where, status, answer)
        return status, answer

    async def _exchange(
        self, method: str, where: str, body: object, query: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        """Send, and read the answer up to the limit."""
        received = bytearray()
        async with self._client.stream(method, where, json=body, params=query) as response:
            async for chunk in response.aiter_bytes():
                received += chunk
                if len(received) > self._limit_bytes:
                    raise ManagementError(
                        f"{method} {self._address.url}{where}: expected an answer of at most "
                        f"{self._limit_bytes} bytes, got more; name one virtual host"
                    )
            return response.status_code, bytes(received)

    async def close(self) -> None:
        """Close the pool. Safe to repeat."""
        await self._client.aclose()

    def _unreachable(self, exc: Exception) -> str:
        """What happened to the line, without anything secret."""
        if isinstance(exc, TimeoutError | self._httpx.TimeoutException):
            found = f"no answer within {self._timeout_s:g} s"
        else:
            found = str(exc) or type(exc).__name__
        return (
            f"management API at {self._address.url}: expected an answer, got: {found}. "
            "Is the management plugin enabled, and is this its port? (--management URL)"
        )

    def _refusal(self, method: str, where: str, status: int, answer: object) -> ManagementError:
        """The error that a status means."""
        place = f"{method} {self._address.url}{where}"
        reason = _reason(answer)
        if status in (401, 403):
            return ManagementRefused(
                f"{place}: user {self._address.user!r} was refused: {status} {reason}",
                status=status,
            )
        if status == 404:
            return ManagementNotFound(f"{place}: not found: {reason}", status=status)
        return ManagementError(f"{place}: the broker answered {status}: {reason}", status=status)


def _decode(content: bytes, place: str, status: int) -> Any:
    """The JSON of an answer; None for an empty one, text for an error that is not JSON."""
    if not content.strip():
        return None
    try:
        return json.loads(content)
    except ValueError as exc:
        if status // 100 != 2:
            return content[:_REASON_CHARACTERS].decode(errors="replace")
        raise ManagementError(
            f"{place}: expected JSON, got something else: is this address a management API?",
            status=status,
        ) from exc


def _reason(answer: object) -> str:
    """The broker's own words for a refusal, on one line, bounded; it writes them as HTML."""
    words = answer.get("reason", answer.get("error")) if isinstance(answer, dict) else answer
    text = unescape(str(words if words is not None else "no reason given"))
    return " ".join(text.split())[:_REASON_CHARACTERS]


def _tls(address: ManagementAddress) -> ssl.SSLContext:
    """A verifying context with the given authority and client certificate."""
    context = ssl.create_default_context(cafile=address.ca_file)
    if address.cert_file:
        context.load_cert_chain(address.cert_file, address.key_file)
    return context


def _import_httpx() -> ModuleType:
    """Httpx, or a sentence that says how to get it."""
    with needs("management", "the management API"):
        import httpx
    return httpx
