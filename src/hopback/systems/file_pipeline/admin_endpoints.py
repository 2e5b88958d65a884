"""The admin endpoints that the document of the file pipeline specifies: list, peek and re-drive.

Clients depend on the responses. Fields may be added, but not changed or removed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hopback import Delivery
from hopback.designs import file_pipeline
from hopback.ops import (
    JobState,
    Operations,
    QueueSummary,
    RedriveRequest,
    Selection,
    SessionRequest,
    Submission,
    Who,
)
from hopback.ops.http import (
    BadToken,
    JwtSettings,
    Refused,
    Role,
    TokenReader,
    forbidden,
    problem_body,
    refusal_of,
    token_reader,
    unauthorized,
)
from hopback.runtime import Clock
from hopback.systems.file_pipeline.register import format_moment
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.settings import SettingsError
from hopback.systems.web import correlation_id

ACCEPTED = tuple(plan.parking.queue for plan in file_pipeline().plans)
"""The dead-letter queues that the document names. All other names are refused."""

# Numbers of messages: the defaults and the maximum that the document specifies.
_PEEKED = 20
_REDRIVEN = 10
_MOST = 100
_MOST_BODY_BYTES = 10_000  # a valid body contains only one number
# enough for 100 messages of usual size; a peek stops when it has read this many bytes
_PEEK_BYTES = 16 * 1024 * 1024
# Seconds. After this time the messages are requeued even if the caller has disconnected.
_PEEK_S = 30.0
# How many bytes of a peek are parsed as JSON. The rest is shown as text.
_PARSED_BYTES = 1024 * 1024
_UNFINISHED = frozenset(
    {JobState.FAILED, JobState.STOPPED, JobState.INTERRUPTED, JobState.CANCELLED}
)


def admin_routes(operations: Operations, settings: PipelineSettings, clock: Clock) -> list[Route]:
    """Return the routes of the admin endpoints, which require the role `admin`."""
    admin = _AdminEndpoints(operations, _token_reader(settings, clock), clock)
    path = "/admin/dlq/queues"
    return [
        Route(path, admin.endpoint(admin.list_queues), methods=["GET"]),
        Route(f"{path}/{{queue}}/messages", admin.endpoint(admin.peek), methods=["GET"]),
        Route(f"{path}/{{queue}}/re-drive", admin.endpoint(admin.redrive), methods=["POST"]),
    ]


def _token_reader(settings: PipelineSettings, clock: Clock) -> TokenReader | None:
    """Return the reader of tokens that are signed with the issuer's keys or the shared secret."""
    if not settings.jwks_url and not settings.secret:
        return None
    tokens = JwtSettings(
        issuer=settings.issuer,
        audience=settings.audience,
        jwks_url=settings.jwks_url,
        secret_env="ADMIN_JWT_SECRET" if settings.secret else "",
        roles_claim=settings.roles_claim,
    )
    if problem := tokens.problem():
        raise SettingsError(f"ADMIN_JWKS_URL or ADMIN_JWT_SECRET: {problem}")
    return token_reader(tokens, (), settings.secret, clock)


@dataclass(frozen=True, slots=True)
class _AdminEndpoints:
    operations: Operations
    tokens: TokenReader | None
    """None if neither a secret nor an issuer is configured. All callers are refused then."""
    clock: Clock

    def endpoint(
        self, answer: Callable[[Request, Who], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that checks the caller's token, calls `answer`, and reports errors in
        the documented form.
        """

        async def respond(request: Request) -> Response:
            correlation = correlation_id(request)
            try:
                response = await answer(request, await self._administrator(request))
            except Exception as error:
                refused = refusal_of(error, request)
                if refused is None:
                    raise
                response = self._refusal(refused, request, correlation)
            response.headers["X-Correlation-ID"] = correlation
            return response

        return respond

    async def list_queues(self, _request: Request, _who: Who) -> Response:
        found = [one for one in await self.operations.queues() if one.queue in ACCEPTED]
        items = []
        for one in sorted(found, key=lambda one: one.queue):
            item: dict[str, object] = {
                **_names(one),
                "label": one.label,
                "messages": one.depth.total or 0,
                "messagesReady": one.depth.ready or 0,
                "messagesUnacknowledged": one.depth.unacked or 0,
                "consumers": one.depth.consumers or 0,
            }
            optional = {"state": one.state, "idleSince": one.idle_since}
            items.append(
                item | {name: value for name, value in optional.items() if value is not None}
            )
        return _json({"items": items, "total": len(items)})

    async def peek(self, request: Request, who: Who) -> Response:
        """Show the first messages of a queue. They are requeued before the response is sent."""
        text = request.query_params.get("limit")
        digits = text is not None and re.fullmatch(r"[0-9]{1,9}", text)
        limit = _limit(int(digits[0]) if digits else text, _PEEKED)
        queue = await self._queue(request)
        window = SessionRequest(limit, _PEEK_BYTES, _PEEK_S)
        operations = self.operations.on_behalf_of(who)
        session = await operations.open_session(queue.queue, window)
        try:
            page = await operations.messages(session.id, limit=limit)
            deliveries = []
            for dead_letter in page.dead_letters:
                # This records in the audit that the caller has seen the message.
                await operations.message(session.id, dead_letter.id)
                deliveries.append(operations.delivery(session.id, dead_letter.id))
        finally:
            await operations.release(session.id)
        ready, room = max(queue.depth.ready or 0, len(deliveries)), _PARSED_BYTES
        items: list[dict[str, Any]] = []
        for place, delivery in enumerate(deliveries, 1):
            size = len(delivery.body)
            items.append(_message(delivery, ready - place, room))
            room -= size if size <= room else 0
            await asyncio.sleep(0)  # let other requests run between two large messages
        return _json({**_names(queue), "requested": limit, "returned": len(items), "items": items})

    async def redrive(self, request: Request, who: Who) -> Response:
        """Re-drive the first messages of a queue. Each one is acked after the broker has confirmed
        its copy.
        """
        limit = _limit(await _body_limit(request), _REDRIVEN)
        queue = await self._queue(request)
        operation = str(uuid.uuid4())
        redrive = RedriveRequest(
            queue=queue.queue,
            selection=Selection(limit=limit),
            reason=f"{request.method} {request.url.path}",
            max_redrives=0,
        )
        submission = Submission(stamped=True, operation=operation)
        started = await self.operations.on_behalf_of(who).start(redrive, submission)
        job = await self.operations.wait(started.id)
        # These messages are still in the queue, in the same order.
        reasons = [one.reason for one in await self.operations.failures(job.id)]
        if job.state in _UNFINISHED:
            reasons += [job.state_reason] * (job.counts.selected - job.counts.done - len(reasons))
        result = {
            "operationCorrelationId": operation,
            **_names(queue),
            "requested": limit,
            "fetched": job.counts.selected,
            "moved": job.counts.done,
            "failed": len(reasons),
            "failures": [
                {"index": index, "reason": reason} for index, reason in enumerate(reasons)
            ],
        }
        return _json(result, 201)

    async def _administrator(self, request: Request) -> Who:
        header = request.headers.get("authorization")
        if header is None:
            raise unauthorized("Missing Authorization header.")
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or self.tokens is None:
            raise unauthorized("Expected the Authorization header to be `Bearer TOKEN`.")
        try:
            principal = await self.tokens.read(token.strip())
        except BadToken as error:
            raise unauthorized(f"The token is not accepted: {error}.") from error
        if not principal.allows_everywhere(Role.ADMIN):
            raise forbidden()
        return Who(principal.id.removeprefix("token:"), principal.name)

    async def _queue(self, request: Request) -> QueueSummary:
        """Return the queue in the path, or raise the documented error 400 if it is not accepted."""
        name = request.path_params["queue"]
        found = [one for one in await self.operations.queues() if one.queue == name]
        if not found or name not in ACCEPTED:
            raise Refused(400, "unsupported-queue", f"Unsupported DLQ queue {name[:255]!r}.")
        return found[0]

    def _refusal(self, refused: Refused, request: Request, correlation: str) -> Response:
        """Return a problem document that also contains the error fields of the document."""
        error: dict[str, object] = {"code": refused.code, "message": refused.detail}
        if refused.more:
            error["details"] = refused.more
        body = problem_body(refused, request.url.path, correlation) | {
            "error": error,
            "statusCode": refused.status,
            "path": request.url.path,
            "method": request.method,
            "timestamp": format_moment(self.clock.now()),
        }
        # The document specifies these texts in English, so the client's language does not matter.
        headers = {**refused.headers, "Cache-Control": "no-store", "Content-Language": "en"}
        return Response(json.dumps(body), refused.status, headers, "application/problem+json")


def _names(queue: QueueSummary) -> dict[str, object]:
    return {
        "queue": queue.queue,
        "mainQueue": queue.main_queue,
        "retryExchange": queue.retry_exchange,
    }


def _json(content: object, status: int = 200) -> Response:
    # Write ASCII, because a payload may contain half of a surrogate pair, which UTF-8 cannot
    # encode.
    text = json.dumps(content, separators=(",", ":"))
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(text, status, headers, "application/json")


async def _body_limit(request: Request) -> object:
    """Return the limit from the body, or None if it is missing."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _MOST_BODY_BYTES:
            raise Refused(413, "body-too-large", f"Expected at most {_MOST_BODY_BYTES} bytes.")
    if not raw.strip():
        return None
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise Refused(400, "bad-json", 'Expected a JSON object like {"limit": 10}.')
    return body.get("limit")


def _limit(asked: object, default: int) -> int:
    if asked is None:
        return default
    if type(asked) is not int or asked < 1:
        raise Refused(400, "bad-limit", "limit must be a positive integer.")
    if asked > _MOST:
        raise Refused(400, "bad-limit", f"limit must be <= {_MOST}.")
    return asked


def _message(delivery: Delivery, behind: int, room: int) -> dict[str, Any]:
    """Return the JSON form of a message. `behind` is the number of messages after it. A payload of
    more than `room` bytes is not parsed.
    """
    payload, encoding = _payload(delivery.body, room)
    properties = delivery.properties
    named = {each.name: getattr(properties, each.name) for each in fields(properties)}
    return {
        "messageCountHint": behind,
        "redelivered": delivery.redelivered,
        "exchange": delivery.exchange,
        "routingKey": delivery.routing_key,
        "payload": payload,
        "payloadEncoding": encoding,
        "properties": {
            name: _plain(value)
            for name, value in named.items()
            if value is not None and name not in ("further_headers", "opaque_headers")
        },
    }


def _payload(body: bytes, room: int) -> tuple[Any, str]:
    """Return the body and its encoding. JSON is parsed unless it is too large. Other text is
    returned as it is, and everything else as base64.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"
    if len(body) > room:
        return text, "string"
    try:
        parsed = json.loads(text, parse_constant=_refuse)
        json.dumps(parsed)  # deep nesting can sometimes be read but not written
    except (ValueError, RecursionError):
        return text, "string"
    return parsed, "string"


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _plain(value: Any) -> Any:
    """Convert a header value to JSON. Bytes that are not UTF-8 are encoded as base64."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "items"):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return value if value is None or isinstance(value, str | int | float) else str(value)
