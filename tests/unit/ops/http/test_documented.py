"""The three documented endpoints, held to their document word for word."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hopback.headers.names import REDRIVE_JOB
from tests.unit.ops.admin_service import DLQ, MAIN, admin, dead_letter, settings
from tests.unit.ops.http.test_access import _bearer, _token

_QUEUES = "/admin/dlq/queues"


async def test_the_list_is_as_documented() -> None:
    """`items` sorted by queue, with exactly these fields at least, and `total`."""
    async with admin(dead_letter(1)) as service:
        answer = await service.client.get(_QUEUES)
    assert answer.status_code == 200
    assert answer.json() == {
        "items": [
            {
                "queue": DLQ,
                "mainQueue": MAIN,
                "retryExchange": "",
                "label": MAIN,
                "messages": 1,
                "messagesReady": 1,
                "messagesUnacknowledged": 0,
                "consumers": 0,
                **_optional(answer.json()["items"][0]),
            }
        ],
        "total": 1,
    }


def _optional(item: dict[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in ("state", "idleSince") if name in item}


async def test_a_peek_is_as_documented() -> None:
    """Twenty by default; the payload is parsed when it is JSON; nothing leaves the queue."""
    async with admin(dead_letter(1), dead_letter(2, body=b"\xff\x00")) as service:
        answer = (await service.client.get(f"{_QUEUES}/{DLQ}/messages")).json()
        assert len(service.broker.snapshot().queue(DLQ).ready) == 2
    head = {name: answer[name] for name in ("queue", "mainQueue", "requested", "returned")}
    assert head == {"queue": DLQ, "mainQueue": MAIN, "requested": 20, "returned": 2}
    first, second = answer["items"]
    assert first["payload"] == {"order": {"id": 1}}
    assert {"redelivered", "exchange", "routingKey", "payloadEncoding", "properties"} <= set(first)
    assert second["payloadEncoding"] == "base64"


async def test_a_peek_parses_a_bounded_part_of_what_it_shows() -> None:
    """A mebibyte of JSON is parsed; what comes beyond that is shown as text."""
    large = b'{"a": "' + b"x" * 600_000 + b'"}'
    async with admin(
        dead_letter(1, body=large), dead_letter(2, body=large), dead_letter(3)
    ) as service:
        items = (await service.client.get(f"{_QUEUES}/{DLQ}/messages")).json()["items"]
    kinds = [type(item["payload"]) for item in items]
    assert kinds == [dict, str, dict]


async def test_a_redrive_is_as_documented() -> None:
    """201 with these fields; the message carries who sent it back, and reaches its own queue."""
    async with admin(dead_letter(1), dead_letter(2)) as service:
        answer = await service.client.post(f"{_QUEUES}/{DLQ}/re-drive", json={"limit": 1})
        moved = service.broker.snapshot().queue(MAIN).ready[0]
    found = answer.json()
    assert answer.status_code == 201
    operation = found.pop("operationCorrelationId")
    assert found == {
        "queue": DLQ, "mainQueue": MAIN, "retryExchange": "", "requested": 1, "fetched": 1,
        "moved": 1, "failed": 0, "failures": [],
    }  # fmt: skip
    headers = moved.properties.headers
    assert headers["x-redriven-from-dlq"] == DLQ
    assert headers["x-redriven-by-user-name"] == "local"
    assert headers["x-redrive-operation-correlation-id"] == operation
    assert {"x-redriven-at", "x-redriven-by-user-id", "x-original-routing-key"} <= set(headers)
    assert REDRIVE_JOB in headers


async def test_a_redrive_without_a_body_takes_ten() -> None:
    """The body may be absent."""
    async with admin(*(dead_letter(n) for n in range(12))) as service:
        found = (await service.client.post(f"{_QUEUES}/{DLQ}/re-drive")).json()
    assert (found["requested"], found["moved"]) == (10, 10)


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("GET", "nowhere/messages", None, "Unsupported DLQ queue"),
        ("POST", "nowhere/re-drive", {}, "Unsupported DLQ queue"),
        ("GET", f"{DLQ}/messages?limit=0", None, "limit must be a positive integer."),
        ("GET", f"{DLQ}/messages?limit=-1", None, "limit must be a positive integer."),
        ("GET", f"{DLQ}/messages?limit=ten", None, "limit must be a positive integer."),
        ("GET", f"{DLQ}/messages?limit=101", None, "limit must be <= 100."),
        ("POST", f"{DLQ}/re-drive", {"limit": 101}, "limit must be <= 100."),
        ("POST", f"{DLQ}/re-drive", {"limit": "1"}, "limit must be a positive integer."),
    ],
)
async def test_what_is_wrong_is_told_in_the_documented_words(
    method: str, path: str, body: Any, message: str
) -> None:
    """400 in both forms: the document's own body, and a problem document."""
    async with admin() as service:
        answer = await service.client.request(method, f"{_QUEUES}/{path}", json=body)
    found = answer.json()
    assert (answer.status_code, found["statusCode"], found["status"]) == (400, 400, 400)
    assert found["error"]["message"].startswith(message)
    assert found["detail"].startswith(message)
    assert (found["method"], found["correlationId"]) == (
        method,
        answer.headers["x-correlation-id"],
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["timestamp"])


async def test_who_may_not_is_told_in_the_documented_words() -> None:
    """401 without a token, 403 with a wrong role."""
    async with admin(settings=settings()) as service:
        nobody = await service.client.get(_QUEUES)
        viewer = await service.client.get(_QUEUES, headers=_bearer(_token(roles=["operator"])))
        boss = await service.client.get(_QUEUES, headers=_bearer(_token()))
    assert (nobody.status_code, nobody.json()["error"]["message"]) == (
        401,
        "Missing Authorization header.",
    )
    assert (viewer.status_code, viewer.json()["error"]["message"]) == (
        403,
        "Insufficient role to access this resource.",
    )
    assert boss.status_code == 200
