"""What stands around every answer: correlation, size limits, security headers, the last resort.

Plain ASGI, so that streams are not held back.
"""

from __future__ import annotations

import logging
import re
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from hopback.admin.problems import Refused, problem_response, refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CONTENT_SECURITY_POLICY", "Shell", "too_large"]

_LOG = logging.getLogger("hopback.admin")
_CORRELATION = re.compile(r"[A-Za-z0-9._:-]{1,128}")

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""Nothing inline, nothing from elsewhere."""

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Shell:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, *, request_bytes: int, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._most = request_bytes
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        correlation = _correlation(headers)
        scope = {**scope, "headers": _with_correlation(scope["headers"], correlation)}
        scope["state"] = {**scope.get("state", {}), "correlation": correlation}
        sending = _Sending(send, correlation)
        try:
            self._check(headers)
            await self._app(scope, _bounded(receive, self._most), sending)
        except Exception as error:  # the last resort: what nobody caught is answered and logged
            if sending.started:
                raise
            answer = problem_response(_told(error, correlation), scope["path"], correlation)
            await answer(scope, receive, sending)

    def _check(self, headers: Headers) -> None:
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            raise Refused(
                421,
                "foreign-host",
                "This service serves this machine only, under localhost or 127.0.0.1.",
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise Refused(400, "bad-request", "Content-Length: expected a number.")
        if int(length) > self._most:
            raise too_large(self._most)


class _Sending:
    """Adds what every answer carries."""

    def __init__(self, send: Send, correlation: str) -> None:
        self._send = send
        self._correlation = correlation
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            headers["X-Correlation-ID"] = self._correlation
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)


def _bounded(receive: Receive, most: int) -> Receive:
    """The request, refused when more comes than was announced or is allowed."""
    read = 0

    async def bounded() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > most:
            raise too_large(most)
        return message

    return bounded


def too_large(most: int) -> Refused:
    """The answer to a request that is larger than is allowed."""
    return Refused(413, "too-large", f"The request is larger than {most} bytes.")


def _correlation(headers: Headers) -> str:
    """The caller's id if it is harmless, else a new one."""
    given = headers.get("x-correlation-id", "")
    return given if _CORRELATION.fullmatch(given) else secrets.token_hex(16)


def _with_correlation(
    headers: Iterable[tuple[bytes, bytes]], correlation: str
) -> list[tuple[bytes, bytes]]:
    """The headers of the request, with the id that holds for it."""
    others = [(name, value) for name, value in headers if name != b"x-correlation-id"]
    return [*others, (b"x-correlation-id", correlation.encode())]


def _host(host: str) -> str:
    """The host without its port."""
    return host.rpartition(":")[0] if re.search(r":\d+$", host) else host


def _told(error: Exception, correlation: str) -> Refused:
    known = refusal_of(error)
    if known is not None:
        return known
    _LOG.error("request %s failed", correlation, exc_info=error)
    return Refused(
        500,
        "internal",
        "Something went wrong that nobody expected; the log has it under the correlation id.",
    )
