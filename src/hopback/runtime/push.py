"""Push messages to HTTP endpoints.

Each delivery is sent to a service with a POST request, and the response determines its outcome.
Targets are read from the configuration, never from a message. Redirects are not followed, and proxy
settings in the environment are ignored. Values of a message are only sent as HTTP headers if they
consist of a single line of plain text.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hopback.durations import Duration, read_seconds
from hopback.errors import InvalidDeclaration, Problem
from hopback.extras import needs
from hopback.headers import failure_from_exception
from hopback.policy.outcome import TOO_EARLY, Done, Retry, outcome_for_status, reason_of
from hopback.policy.reading import Reading
from hopback.runtime.answer import DONE, Answer
from hopback.runtime.context import trace_source
from hopback.runtime.handler import HandlerOptions, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from hopback.clock import Clock
    from hopback.message import Delivery
    from hopback.topology.plan import Plan

_HARMLESS = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,510}[\x21-\x7e])?\Z")
_LONGEST_WAIT = 86_400.0
"""Seconds. A `processAfterDelayMs` of more than a day is asked about once a day."""
_POLL_S = 2.5
"""Seconds between two calls of a receiver that answers 425 to an event without a due time in the future.
At most 30 calls a minute for each event are allowed."""
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}\Z")
SIGNATURE = "x-hopback-signature"
"""The header that authenticates a request and its time."""
_OURS = frozenset(
    {
        "authorization",
        "content-length",
        "content-type",
        "host",
        "traceparent",
        "transfer-encoding",
        "x-attempt",
        "x-correlation-id",
        "x-message-id",
        "x-message-type",
        "x-routing-key",
        SIGNATURE,
    }
)
"""Reserved headers that describe the message or the connection."""
_IDLE_S = 3.0
"""Longest time that an idle connection is reused. It is shorter than the keep-alive time of servers (often 5
s). Otherwise an event would occasionally fail on a connection that is just being closed.
"""
_LONGEST_ANSWER = 65_536
"""Bytes of an answer that are read so that its connection can be used again."""


@dataclass(frozen=True, slots=True, init=False)
class PushTarget:
    """The endpoint for the deliveries of a queue. `timeout` is converted to seconds."""

    url: str
    timeout: float = 10.0
    connections: int = 20
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request, as they are."""
    bearer: str = field(default="", repr=False)
    """A token, sent as `Authorization: Bearer …`."""
    secret: str = field(default="", repr=False)
    """Key for signing requests: `x-hopback-signature: t=SECONDS,v1=HEX`, where HEX is the
    HMAC-SHA256 of `SECONDS.BODY`. A receiver that refuses old times is protected against replays.
    """

    def __init__(
        self,
        url: str,
        timeout: Duration = 10.0,
        connections: int = 20,
        headers: Mapping[str, str] | None = None,
        bearer: str = "",
        secret: str = "",
    ) -> None:
        object.__setattr__(self, "url", url)
        seconds = read_seconds(timeout, "timeout", where="push target", zero=False)
        object.__setattr__(self, "timeout", seconds)
        object.__setattr__(self, "connections", connections)
        object.__setattr__(self, "headers", dict(headers or {}))
        object.__setattr__(self, "bearer", bearer)
        object.__setattr__(self, "secret", secret)
        self._check()

    def _check(self) -> None:
        if not re.match(r"https?://[^/\s@]+(/\S*)?\Z", self.url):
            problem = Problem(
                "url", "http://host/path or https://host/path, without credentials", repr(self.url)
            )
            raise InvalidDeclaration((problem,), where="push target")
        require("connections", self.connections >= 1, "at least 1", self.connections)
        problems = []
        for name, value in self.headers.items():
            if not _TOKEN.match(name):
                expected = "names of letters, digits and hyphens"
                problems.append(Problem("headers", expected, repr(name)))
            elif name.lower() in _OURS:
                expected = "a header that Hopback does not set itself"
                problems.append(Problem(f"headers.{name}", expected, "it"))
            elif not _HARMLESS.match(value):
                # The value may be a key, so leave it out.
                problems.append(Problem(f"headers.{name}", "one line of ASCII", "something else"))
        if self.bearer and not _HARMLESS.match(self.bearer):
            problems.append(Problem("bearer", "one line of ASCII", "something else"))
        if problems:
            raise InvalidDeclaration(tuple(problems), where="push target")

    def signature(self, body: bytes, now: float) -> str:
        """Return the `x-hopback-signature` of a body."""
        moment = str(int(now))
        signed = hmac.new(self.secret.encode(), f"{moment}.".encode() + body, hashlib.sha256)
        return f"t={moment},v1={signed.hexdigest()}"


@dataclass(frozen=True, slots=True)
class PushHandler:
    """A queue whose deliveries are sent to an endpoint instead of a handler."""

    queue: str
    target: PushTarget
    options: HandlerOptions


class PushRunner:
    """Sends deliveries to one endpoint. Exceptions and timeouts are retried like server errors."""

    def __init__(self, target: PushTarget, plan: Plan, clock: Clock) -> None:
        self._target = target
        self._plan = plan
        self._clock = clock
        self._client = push_client(target)

    async def __call__(self, delivery: Delivery) -> Answer:
        """Send the delivery and convert the response to an outcome."""
        try:
            async with asyncio.timeout(self._target.timeout):
                status, retry_after = await self._post(delivery)
        except TimeoutError as error:
            reason = f"no answer within {self._target.timeout:g} s"
            return Answer(Retry(reason), failure_from_exception(error), error=error)
        except Exception as error:
            return Answer(Retry(reason_of(error)), failure_from_exception(error), error=error)
        due_in = self._due_in(delivery) if status == TOO_EARLY else 0.0
        # Only use Retry-After if it is in seconds. A date would require synchronised clocks.
        after = None
        if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
            after = float(retry_after) if len(retry_after) < 7 else None
        outcome = outcome_for_status(status, due_in=due_in, retry_after=after)
        return DONE if isinstance(outcome, Done) else Answer(outcome, None, status)

    async def _post(self, delivery: Delivery) -> tuple[int, str | None]:
        """Return the status and `Retry-After` of the response. Large bodies are only read
        partially.
        """
        request = self._client.stream(
            "POST", self._target.url, content=delivery.body, headers=self._headers(delivery)
        )
        async with request as response:
            size = 0
            async for chunk in response.aiter_raw():
                size += len(chunk)
                if size > _LONGEST_ANSWER:
                    break
            return response.status_code, response.headers.get("retry-after")

    async def close(self) -> None:
        await self._client.aclose()

    def _headers(self, delivery: Delivery) -> dict[str, str]:
        reading, properties = Reading(delivery, self._plan), delivery.properties
        # Use the current span if tracing is enabled, otherwise the trace context of the message.
        current = trace_source.get(None)
        trace = properties.headers if current is None else current()
        found = {
            "content-type": properties.content_type or "application/octet-stream",
            "x-message-id": reading.message_id,
            "x-correlation-id": properties.correlation_id,
            "x-message-type": properties.type,
            "x-routing-key": reading.origin[1],
            "x-attempt": str(reading.attempt),
            "traceparent": trace.get("traceparent"),
        }
        harmless = {
            name: value
            for name, value in found.items()
            if isinstance(value, str) and _HARMLESS.match(value)
        }
        if self._target.bearer:
            harmless["authorization"] = f"Bearer {self._target.bearer}"
        if self._target.secret:
            harmless[SIGNATURE] = self._target.signature(delivery.body, self._clock.now())
        return {**self._target.headers, **harmless}

    def _due_in(self, delivery: Delivery) -> float:
        """Return the seconds left until `processAfterDelayMs` has passed. Defaults to `_POLL_S`."""
        try:
            event: Any = json.loads(delivery.body)
        except (ValueError, RecursionError):
            return _POLL_S
        delay_ms = event.get("processAfterDelayMs") if isinstance(event, dict) else None
        since = delivery.properties.timestamp
        if not isinstance(delay_ms, int | float) or not 0 <= delay_ms < 1e12 or since is None:
            return _POLL_S
        due_in = since + delay_ms / 1000 - self._clock.now()
        if due_in <= 0:
            due_in += 1  # the timestamp is in whole seconds, so the event may be up to 1 s younger
        return min(due_in, _LONGEST_WAIT) if due_in > 0 else _POLL_S


def push_client(target: PushTarget) -> httpx.AsyncClient:
    """Create an HTTP client for one endpoint. Redirects, proxies and cookies are disabled.

    httpx is imported here because only push needs it.
    """
    from http.cookiejar import CookieJar, DefaultCookiePolicy

    with needs("push", "push"):
        import httpx
    # httpx logs each request, which would flood the log. Errors are part of the delivery's event.
    logger = logging.getLogger("httpx")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)

    limits = httpx.Limits(
        max_connections=target.connections,
        max_keepalive_connections=target.connections,
        keepalive_expiry=_IDLE_S,
    )
    return httpx.AsyncClient(
        timeout=target.timeout,
        limits=limits,
        follow_redirects=False,
        trust_env=False,
        # Don't send a cookie that was set by the response to a different event.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
    )
