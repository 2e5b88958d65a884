"""The three admin endpoints that the file pipeline's document specifies: list, peek and re-drive.

Their answers are a contract. Fields are only added.
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

ACCEPTED = tuple(
    f"q.{name}.dlq"
    for name in (
        "upload.commands",
        "validator",
        "thumbnail",
        "extractor",
        "projection",
        "notification",
        "audit",
    )
)
"""The dead-letter queues that the document names. The endpoints refuse every other name."""

# Messages: the defaults and the maximum of the document.
_PEEKED = 20
_REDRIVEN = 10
_MOST = 100
_MOST_BODY_BYTES = 10_000  # a request body contains one number, a longer body is refused
_PEEK_BYTES = 16 * 1024 * 1024  # 100 messages of usual size; a peek ends early at this size
_PEEK_S = 30.0  # seconds; the messages are requeued after that even if the caller is gone
_PARSED_BYTES = 1024 * 1024  # bytes of one peek that are parsed as JSON; the rest is shown as text
_CORRELATION = re.compile(r"[!-~]{1,128}")
_UNFINISHED = frozenset(
    {JobState.FAILED, JobState.STOPPED, JobState.INTERRUPTED, JobState.CANCELLED}
)


def admin_routes(operations: Operations, settings: PipelineSettings, clock: Clock) -> list[Route]:
    """Return the routes of the endpoints. They need the role `admin`."""
    tokens = None
    if settings.jwks_url or settings.secret:
        tokens = token_reader(settings.tokens(), (), settings.secret, clock)
    admin = _AdminEndpoints(operations, tokens, clock)
    path = "/admin/dlq/queues"
    return [
        Route(path, admin.endpoint(admin.list_queues), methods=["GET"]),
        Route(f"{path}/{{queue}}/messages", admin.endpoint(admin.peek), methods=["GET"]),
        Route(f"{path}/{{queue}}/re-drive", admin.endpoint(admin.redrive), methods=["POST"]),
    ]


@dataclass(frozen=True, slots=True)
class _AdminEndpoints:
    operations: Operations
    tokens: TokenReader | None
    """None refuses every caller: no secret and no issuer are configured."""
    clock: Clock

    def endpoint(
        self, answer: Callable[[Request, Who], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wrap `answer`: check the caller's token first and report errors as the document specifies."""

        async def respond(request: Request) -> Response:
            given = request.headers.get("x-correlation-id", "")
            correlation = given if _CORRELATION.fullmatch(given) else str(uuid.uuid4())
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
        """List the accepted queues with their depths."""
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
        """Show messages at the head. They are requeued before the response is sent."""
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
                # Writes to the audit that this caller has seen the message.
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
            await asyncio.sleep(0)  # other requests are answered between two large messages
        return _json({**_names(queue), "requested": limit, "returned": len(items), "items": items})

    async def redrive(self, request: Request, who: Who) -> Response:
        """Re-drive messages from the head. Each is acked after the broker's confirm."""
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
        # The messages that are still in the queue, in its order.
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
        """Return the queue in the path. Refuse it with the documented 400 if it is not accepted."""
        name = request.path_params["queue"]
        found = [one for one in await self.operations.queues() if one.queue == name]
        if not found or name not in ACCEPTED:
            raise Refused(400, "unsupported-queue", f"Unsupported DLQ queue {name[:255]!r}.")
        return found[0]

    def _refusal(self, refused: Refused, request: Request, correlation: str) -> Response:
        """Return a problem document that also has the error fields of the pipeline's document."""
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
        # The messages are those of the document, whatever language the client prefers.
        headers = {**refused.headers, "Cache-Control": "no-store", "Content-Language": "en"}
        return Response(json.dumps(body), refused.status, headers, "application/problem+json")


def _names(queue: QueueSummary) -> dict[str, object]:
    return {
        "queue": queue.queue,
        "mainQueue": queue.main_queue,
        "retryExchange": queue.retry_exchange,
    }


def _json(content: object, status: int = 200) -> Response:
    # ASCII, because a payload may contain half of a surrogate pair, which UTF-8 cannot encode.
    text = json.dumps(content, separators=(",", ":"))
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(text, status, headers, "application/json")


async def _body_limit(request: Request) -> object:
    """Return the limit in the body, or None if the body or the limit is absent."""
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
    """Show a message. `behind` messages follow it; a payload larger than `room` bytes is not parsed."""
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
    """Return the body parsed if it is JSON and not too large, otherwise as text, otherwise as base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"
    if len(body) > room:
        return text, "string"
    try:
        parsed = json.loads(text, parse_constant=_refuse)
        json.dumps(parsed)  # nesting that can be read but not written is shown as text
    except (ValueError, RecursionError):
        return text, "string"
    return parsed, "string"


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _plain(value: Any) -> Any:
    """Convert a header value to JSON. Bytes become text, or base64 if they are not UTF-8."""
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
