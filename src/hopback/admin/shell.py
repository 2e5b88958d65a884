"""What stands around every answer: correlation, size limits, security headers, the last resort.

Plain ASGI, so that streams are not held back.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from hopback.admin.problems import Refused, problem_response, refusal_of, unexpected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hopback.admin.settings import Limits

__all__ = ["CONTENT_SECURITY_POLICY", "Shell", "host_of", "too_large"]

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

    def __init__(self, app: ASGIApp, *, limits: Limits, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._most = limits.request_bytes
        self._seconds = limits.request_seconds
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
            await self._app(scope, _bounded(receive, self._most, self._seconds), sending)
        except Exception as error:  # the last resort: what nobody caught is answered and logged
            refused = refusal_of(error)
            if refused is None:
                _LOG.error("request %s failed", correlation, exc_info=error)
            if not sending.started:
                answer = problem_response(refused or unexpected(), scope["path"], correlation)
                await answer(scope, receive, sending)
            elif not sending.ended:
                raise  # a cut answer must not look like a whole one: the server closes the line

    def _check(self, headers: Headers) -> None:
        if self._hosts is not None and host_of(headers) not in self._hosts:
            raise Refused(
                421,
                "foreign-host",
                "This service serves this machine only, under localhost or 127.0.0.1.",
            )
        length = headers.get("content-length", "0")
        if not re.fullmatch(r"[0-9]{1,18}", length):
            raise Refused(400, "bad-request", "Content-Length: expected a number.")
        if int(length) > self._most:
            raise too_large(self._most)


class _Sending:
    """Adds what every answer carries."""

    def __init__(self, send: Send, correlation: str) -> None:
        self._send = send
        self._correlation = correlation
        self.started = False
        self.ended = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            headers["X-Correlation-ID"] = self._correlation
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        elif message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
        await self._send(message)


def _bounded(receive: Receive, most: int, seconds: float) -> Receive:
    """The request, refused when more comes than was announced or is allowed, or too slowly."""
    read, whole = 0, False
    deadline: float | None = None

    async def bounded() -> Message:
        nonlocal read, whole, deadline
        if whole:  # now it is only waited for the caller to hang up, which may take long
            return await receive()
        deadline = deadline or asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise Refused(
                408, "too-slow", f"The body did not come within {seconds:g} s.",
                headers={"Connection": "close"},
            ) from None  # fmt: skip
        whole = not message.get("more_body", False)
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


def host_of(headers: Headers) -> str:
    """The host that was asked for, without its port."""
    host = headers.get("host", "")
    return host.rpartition(":")[0] if re.search(r":\d+$", host) else host
