"""The outermost ASGI application, which applies limits and sets headers."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request

from hopback.ops.http.archives import IMPORT_PATH
from hopback.ops.http.path_route import sent_path
from hopback.ops.http.problems import (
    Refused,
    internal_error,
    log_refusal,
    problem_response,
    refusal_of,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hopback.ops.http.settings import RequestLimits

_LOG = logging.getLogger("hopback.ops.http")

_CORRELATION = re.compile(r"[A-Za-z0-9._:-]{1,128}")

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""No inline scripts, no inline styles, and no content from other hosts."""

_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


_HSTS = "max-age=31536000"
"""Browsers that have used HTTPS only use HTTPS for this host for one year."""


class Shell:
    """Apply limits and set headers for all requests."""

    def __init__(
        self, app: ASGIApp, *, limits: RequestLimits, hosts: frozenset[str] | None
    ) -> None:
        self._app = app
        self._limits = limits
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, and send an error response if the application fails."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        correlation = _correlation(headers)
        others = [each for each in scope["headers"] if each[0] != b"x-correlation-id"]
        scope = {**scope, "headers": [*others, (b"x-correlation-id", correlation.encode())]}
        scope["state"] = {**scope.get("state", {}), "correlation": correlation}
        sending = _Sending(send, correlation, scope)
        try:
            imports = IMPORT_PATH.fullmatch(sent_path(scope)) is not None
            most = self._limits.import_bytes if imports else self._limits.request_bytes
            seconds = self._limits.import_seconds if imports else self._limits.request_seconds
            self._check(headers, most)
            await self._app(scope, _limit_body(receive, most, seconds), sending)
        except Exception as error:  # unexpected errors are answered and logged
            refused = refusal_of(error, Request(scope))
            if refused is None:
                _LOG.error("request %s failed", correlation, exc_info=error)
            if not sending.started:
                answer = problem_response(refused or internal_error(), scope["path"], correlation)
                await answer(scope, receive, sending)
            elif not sending.ended:
                # the server closes the connection, so that clients recognise the response as
                # incomplete
                raise

    def _check(self, headers: Headers, most: int) -> None:
        if self._hosts is not None and host_of(headers) not in self._hosts:
            raise Refused(
                421,
                "foreign-host",
                "This service serves this machine only, under localhost or 127.0.0.1.",
            )
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy that uses the other header would treat the rest of the body as another
            # request.
            raise Refused(
                400,
                "bad-request",
                "Expected either Content-Length or Transfer-Encoding, got both.",
                headers={"Connection": "close"},
            )
        length = headers.get("content-length", "0")
        if not re.fullmatch(r"[0-9]{1,18}", length):
            raise Refused(400, "bad-request", "Content-Length: expected a number.")
        if int(length) > most:
            raise too_large(most)


class _Sending:
    """Set the headers of every response."""

    def __init__(self, send: Send, correlation: str, scope: Scope) -> None:
        self._send = send
        self._scope = scope
        self._correlation = correlation
        self.started = False
        self.ended = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            if message["status"] >= 400:
                log_refusal(self._scope, message["status"])
            headers = MutableHeaders(scope=message)
            headers["X-Correlation-ID"] = self._correlation
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if self._scope["scheme"] == "https":
                headers["Strict-Transport-Security"] = _HSTS
            headers.setdefault("Cache-Control", "no-store")
        elif message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
        await self._send(message)


def _limit_body(receive: Receive, most: int, seconds: float) -> Receive:
    """Limit the size of a request body and the time to receive it."""
    read, whole = 0, False
    deadline: float | None = None

    async def receive_within() -> Message:
        nonlocal read, whole, deadline
        if whole:  # the next message is the disconnect, for which there is no time limit
            return await receive()
        deadline = deadline or asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise Refused(
                408, "too-slow", f"The body did not arrive within {seconds:g} s.",
                headers={"Connection": "close"},
            ) from None  # fmt: skip
        whole = not message.get("more_body", False)
        read += len(message.get("body", b""))
        if read > most:
            raise too_large(most)
        return message

    return receive_within


def too_large(most: int) -> Refused:
    return Refused(413, "too-large", f"The request is larger than {most} bytes.")


def _correlation(headers: Headers) -> str:
    """Return the correlation id of the request if it is valid, or a new one."""
    given = headers.get("x-correlation-id", "")
    return given if _CORRELATION.fullmatch(given) else secrets.token_hex(16)


def host_of(headers: Headers) -> str:
    """Return the host name of the request without the port."""
    host = headers.get("host", "")
    return host.rpartition(":")[0] if re.search(r":\d+$", host) else host
