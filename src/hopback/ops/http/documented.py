"""The three documented endpoints of dead letters, for the file pipeline.

List the queues, peek, re-drive. What they answer is a contract: fields are only ever added. The code that
mounts them says who may call and which queues are accepted.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from decimal import Decimal
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from starlette.responses import Response

from hopback.errors import UnsafeOperation
from hopback.ops.browse.memory import held_size
from hopback.ops.browse.turns import Turns
from hopback.ops.contract.requests import RedriveRequest, Selection, Who, Window
from hopback.ops.contract.values import JobState
from hopback.ops.http.api import PathRoute
from hopback.ops.http.problems import MEDIA_TYPE, Refused, problem_body, refusal_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from starlette.requests import Request
    from starlette.routing import Route

    from hopback.clock import Clock
    from hopback.message import Delivery
    from hopback.ops.contract.values import QueueSummary
    from hopback.ops.operations import Operations

# The document's own numbers.
_PEEKED = 20
_REDRIVEN = 10
_MOST = 100
_MOST_BODY_BYTES = 10_000  # a body holds one number
_PEEK_BYTES = 16 * 1024 * 1024  # a hundred messages of usual size; the answer is one piece of JSON
_PEEK_S = 30.0  # by then the answer is out, or the caller has gone
_CORRELATION = re.compile(r"[!-~]{1,128}")
_WENT_ON = frozenset({JobState.FAILED, JobState.STOPPED, JobState.INTERRUPTED, JobState.CANCELLED})


Authorize: TypeAlias = "Callable[[Request], Awaitable[Who]]"
"""Says who asks; Refused with 401 or 403 if they may not."""
ReadQueues: TypeAlias = "Callable[[], Awaitable[tuple[QueueSummary, ...]]]"
"""Gives every dead-letter queue with its depth."""


def documented_routes(
    operations: Operations,
    authorize: Authorize,
    clock: Clock,
    *,
    queues: Collection[str] | None = None,
    read: ReadQueues | None = None,
    prefix: str = "",
) -> list[Route]:
    """The routes, below `prefix`. `queues` are the names that are accepted; None accepts all that are known.

    `read` gives the queues with their depths; the operations do, unless somebody else is quicker.
    """
    made = _Documented(operations, authorize, clock, queues, read or operations.queues, prefix)
    path = f"{prefix}/admin/dlq/queues/{{queue}}"
    return [
        PathRoute(f"{prefix}/admin/dlq/queues", made.answering(made.list_queues), methods=["GET"]),
        PathRoute(f"{path}/messages", made.answering(made.peek), methods=["GET"]),
        PathRoute(f"{path}/re-drive", made.answering(made.redrive), methods=["POST"]),
    ]


@dataclass(frozen=True, slots=True)
class _Documented:
    operations: Operations
    authorize: Authorize
    clock: Clock
    queues: Collection[str] | None
    read: ReadQueues
    prefix: str

    def answering(
        self, work: Callable[[Request, Who], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint: who may, then the work; whatever is refused is told in the contract's form."""

        async def answer(request: Request) -> Response:
            # The caller's own id, if it is fit to be repeated; else a new one.
            given = request.headers.get("x-correlation-id", "")
            correlation = given if _CORRELATION.fullmatch(given) else str(uuid.uuid4())
            try:
                response = await work(request, await self.authorize(request))
            except Exception as error:
                refused = refusal_of(error, request)
                if refused is None:
                    raise
                response = self._refusal(refused, request, correlation)
            response.headers["X-Correlation-ID"] = correlation
            return response

        return answer

    async def list_queues(self, _request: Request, _who: Who) -> Response:
        """Every accepted queue, sorted, with its depth; nothing is looked into."""
        found = sorted(await self.read(), key=lambda one: one.queue)
        items = []
        for one in found:
            if not self._accepts(one.queue):
                continue
            item: dict[str, object] = {
                "queue": one.queue,
                "mainQueue": one.main_queue,
                "retryExchange": one.retry_exchange,
                "label": one.label,
                "messages": one.depth.total or 0,
                "messagesReady": one.depth.ready or 0,
                "messagesUnacknowledged": one.depth.unacked or 0,
                "consumers": one.depth.consumers or 0,
            }
            more = {"state": one.state, "idleSince": one.idle_since}
            items.append(item | {name: said for name, said in more.items() if said is not None})
        return _json({"items": items, "total": len(items)})

    async def peek(self, request: Request, who: Who) -> Response:
        """Messages at the head; they are given back before the answer goes out."""
        said = request.query_params.get("limit")
        digits = said is not None and re.fullmatch(r"[0-9]{1,9}", said)
        limit = _limit(int(digits[0]) if digits else said, _PEEKED)
        summary, ready = await self._queue(request)
        window = Window(limit, _PEEK_BYTES, _PEEK_S)
        try:
            session = await self.operations.open_session(summary["queue"], window, by=who)
        except UnsafeOperation as unsafe:
            raise _too_dear(unsafe, summary["queue"], self.prefix) from unsafe
        try:
            page = await self.operations.messages(session.id, size=limit)
            shown = []
            for dead_letter in page.dead_letters:
                # That it is shown is written to the audit.
                await self.operations.message(session.id, dead_letter.id, by=who)
                shown.append(self.operations.delivery(session.id, dead_letter.id))
        finally:
            await self.operations.release(session.id)
        behind, turns, room = max(ready, len(shown)), Turns(), PARSED_BYTES
        items: list[dict[str, Any]] = []
        for place, delivery in enumerate(shown, 1):
            size = len(delivery.body)
            items.append(message_item(delivery, behind - place, room))
            room -= size if size <= room else 0
            await turns.after(held_size(delivery))
        return _json({**summary, "requested": limit, "returned": len(items), "items": items})

    async def redrive(self, request: Request, who: Who) -> Response:
        """Messages from the head back to where the design says, each confirmed before it is acked."""
        limit = _limit(await _body_limit(request), _REDRIVEN)
        summary, _ = await self._queue(request)
        operation = str(uuid.uuid4())
        asked = RedriveRequest(
            queue=summary["queue"],
            selection=Selection(limit=limit),
            reason=f"{request.method} {request.url.path}",
            by=who,
            max_redrives=None,
            stamped=True,
            operation=operation,
        )
        job = await self.operations.wait((await self.operations.start(asked)).id)
        # What was not moved and why, in the order of the queue; all of it is still there.
        reasons = [one.reason for one in await self.operations.failures(job.id)]
        if job.state in _WENT_ON:
            reasons += [job.reason] * (job.counts.selected - job.counts.done - len(reasons))
        failures = [{"index": index, "reason": reason} for index, reason in enumerate(reasons)]
        counts = {
            "requested": limit,
            "fetched": job.counts.selected,
            "moved": job.counts.done,
            "failed": len(failures),
        }
        answer = {"operationCorrelationId": operation, **summary, **counts, "failures": failures}
        return _json(answer, 201)

    async def _queue(self, request: Request) -> tuple[dict[str, Any], int]:
        """The queue in the path and its depth, if it is accepted; else the documented 400."""
        name = request.path_params["queue"]
        known = {one.queue: one for one in await self.read()}
        if name not in known or not self._accepts(name):
            raise Refused(400, "unsupported-queue", f"Unsupported DLQ queue {name[:255]!r}.")
        one = known[name]
        known_as = {"mainQueue": one.main_queue, "retryExchange": one.retry_exchange}
        return {"queue": name, **known_as}, one.depth.ready or 0

    def _accepts(self, name: str) -> bool:
        return self.queues is None or name in self.queues

    def _refusal(self, refused: Refused, request: Request, correlation: str) -> Response:
        """A problem document that also has the fields of the contract's own error body."""
        moment = datetime.fromtimestamp(self.clock.now(), UTC).isoformat(timespec="milliseconds")
        error: dict[str, object] = {"code": refused.code, "message": refused.detail}
        if refused.more:
            error["details"] = refused.more
        body = problem_body(refused, request.url.path, correlation) | {
            "error": error,
            "statusCode": refused.status,
            "path": request.url.path,
            "method": request.method,
            "timestamp": moment.replace("+00:00", "Z"),
        }
        headers = {**refused.headers, "Cache-Control": "no-store"}
        return Response(json.dumps(body), refused.status, headers, MEDIA_TYPE)


def _too_dear(unsafe: UnsafeOperation, queue: str, prefix: str) -> Refused:
    """Looking could lose messages: the price, and how to look all the same."""
    url = f"{prefix}/admin/dlq/queues/{quote(queue, safe='')}/sessions"
    more = {
        "remedy": unsafe.remedy,
        "browse": {
            "method": "POST",
            "url": url,
            "lift": {"limit": 20, "lift": True},
            "force": {"limit": 20, "force": True},
        },
    }
    detail = f"{unsafe} A browse session costs one look however many pages are read: POST {url}."
    return Refused(409, "unsafe", detail, more=more)


def _json(content: object, status: int = 200) -> Response:
    # ASCII: a payload may hold halves of characters, which no UTF-8 can carry.
    text = json.dumps(content, separators=(",", ":"))
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(text, status, headers, "application/json")


async def _body_limit(request: Request) -> object:
    """The limit that the body asks for; the body may be absent."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _MOST_BODY_BYTES:
            raise Refused(413, "body-too-large", f"Expected at most {_MOST_BODY_BYTES} bytes.")
    if not raw.strip():
        return None
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise Refused(400, "bad-json", 'Expected a JSON object like {"limit": 10}.') from None
    if not isinstance(found, dict):
        raise Refused(400, "bad-json", 'Expected a JSON object like {"limit": 10}.')
    return found.get("limit")


def _limit(asked: object, default: int) -> int:
    if asked is None:
        return default
    if type(asked) is not int or asked < 1:
        raise Refused(400, "bad-limit", "limit must be a positive integer.")
    if asked > _MOST:
        raise Refused(400, "bad-limit", f"limit must be <= {_MOST}.")
    return asked


PARSED_BYTES = 1024 * 1024
"""How much of a peek is shown as parsed JSON; larger payloads are shown as text."""


def message_item(delivery: Delivery, hint: int, room: int = PARSED_BYTES) -> dict[str, Any]:
    """The message; `hint` is how many were behind it, `room` the largest payload to be parsed."""
    payload, encoding = _payload(delivery.body, room)
    said = delivery.properties
    named = {each.name: getattr(said, each.name) for each in fields(said)}
    return {
        "messageCountHint": hint,
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
    """Parsed where it is JSON and not too large, else as text, else as base64."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"
    if len(body) > room:
        return text, "string"
    try:
        parsed = json.loads(text, parse_constant=_refuse)
        json.dumps(parsed)  # what cannot be written again is shown as it came
    except (ValueError, RecursionError):
        return text, "string"
    return parsed, "string"


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _plain(value: Any) -> Any:
    """A value that JSON has; bytes as text where they are text."""
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


_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_NUMBER = {"type": "integer", "minimum": 0}
_NAMES: dict[str, Any] = {
    "queue": _TEXT,
    "mainQueue": _TEXT_OR_NULL,
    "retryExchange": _TEXT_OR_NULL,
}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": 100}


def _object(optional: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": sorted(properties),
        "properties": {**properties, **(optional or {})},
    }


_QUEUE = _object(
    {"state": _TEXT, "idleSince": _TEXT},
    **_NAMES,
    label=_TEXT,
    messages=_NUMBER,
    messagesReady=_NUMBER,
    messagesUnacknowledged=_NUMBER,
    consumers=_NUMBER,
)
_MESSAGE = _object(
    {"messageCountHint": _NUMBER, "exchange": _TEXT, "routingKey": _TEXT},
    redelivered={"type": "boolean"},
    payload={},
    payloadEncoding=_TEXT,
    properties={"type": "object"},
)
_PROBLEM = _object(
    error=_object({"details": {}}, code=_TEXT, message=_TEXT),
    statusCode=_NUMBER,
    path=_TEXT,
    method=_TEXT,
    timestamp={"type": "string", "format": "date-time"},
    correlationId=_TEXT,
    type=_TEXT,
    title=_TEXT,
    status=_NUMBER,
    detail=_TEXT,
    instance=_TEXT,
    code=_TEXT,
)
_QUEUE_PARAMETER = {
    "name": "queue",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def _answers(status: int, schema: dict[str, Any], *refused: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": schema}},
        }
    }
    for each in (401, 403, 429, 503, *refused):
        found[str(each)] = {
            "description": HTTPStatus(each).phrase,
            "content": {MEDIA_TYPE: {"schema": _PROBLEM}},
        }
    return found


def _operation(name: str, summary: str, responses: dict[str, Any], **more: Any) -> dict[str, Any]:
    role = "Needs the role `admin`."
    return {
        "operationId": name,
        "summary": summary,
        "description": role,
        "responses": responses,
    } | more


DOCUMENTED_PATHS: dict[str, Any] = {
    "/admin/dlq/queues": {
        "get": _operation(
            "listQueues",
            "The dead-letter queues with their depths.",
            _answers(200, _object(items={"type": "array", "items": _QUEUE}, total=_NUMBER)),
        )
    },
    "/admin/dlq/queues/{queue}/messages": {
        "get": _operation(
            "peek",
            "Messages at the head; they stay where they are.",
            _answers(
                200,
                _object(
                    **_NAMES,
                    requested=_NUMBER,
                    returned=_NUMBER,
                    items={"type": "array", "items": _MESSAGE},
                ),
                400,
                409,
            ),
            parameters=[
                _QUEUE_PARAMETER,
                {
                    "name": "limit",
                    "in": "query",
                    "required": False,
                    "schema": {**_LIMIT, "default": 20},
                },
            ],
        )
    },
    "/admin/dlq/queues/{queue}/re-drive": {
        "post": _operation(
            "redrive",
            "Send messages back, each confirmed before it leaves its queue.",
            _answers(
                201,
                _object(
                    **_NAMES,
                    operationCorrelationId=_TEXT,
                    requested=_NUMBER,
                    fetched=_NUMBER,
                    moved=_NUMBER,
                    failed=_NUMBER,
                    failures={"type": "array", "items": _object(index=_NUMBER, reason=_TEXT)},
                ),
                400,
                409,
                413,
            ),
            parameters=[_QUEUE_PARAMETER],
            requestBody={
                "required": False,
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "properties": {"limit": {**_LIMIT, "default": 10}},
                        }
                    }
                },
            },
        )
    },
}
"""Paths as OpenAPI has them."""
