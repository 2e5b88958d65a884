"""The three documented endpoints as OpenAPI: what the document says, and what we add."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from hopback.admin.problems import MEDIA_TYPE

__all__ = ["DOCUMENTED_PATHS"]

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
