"""The contract of the three documented endpoints: names, fields, limits, errors, roles."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from hopback import Message
from hopback.runtime import Properties
from hopback.systems.file_pipeline.admin_endpoints import ACCEPTED
from hopback.testing import Fault, in_virtual_time
from tests.systems.file_pipeline.gateway_client import GatewayClient, open_gateway
from tests.systems.file_pipeline.samples import broken_png, png

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

_SECRET = "a secret that is long enough for HS256, for tests only"
_QUEUES = "/admin/dlq/queues"
_NAMES = {
    "q.upload.commands.dlq",
    "q.validator.dlq",
    "q.thumbnail.dlq",
    "q.extractor.dlq",
    "q.projection.dlq",
    "q.notification.dlq",
    "q.audit.dlq",
}


def _token(**claims: Any) -> dict[str, str]:
    payload = {
        "sub": "u-1",
        "preferred_username": "ada",
        "iss": "file-pipeline",
        "aud": "file-pipeline",
        "exp": 9e9,
        "roles": ["admin"],
        **claims,
    }
    return {"authorization": f"Bearer {jwt.encode(payload, _SECRET, 'HS256')}"}


class _Admin:
    """An administrator's client of the gateway."""

    def __init__(self, web: GatewayClient) -> None:
        self.web = web
        self.system = web.system

    async def get(self, path: str, **query: Any) -> httpx.Response:
        return await self.web.client.get(path, params=query, headers=_token())

    async def redrive(self, queue: str, body: object = None) -> httpx.Response:
        content = None if body is None else json.dumps(body).encode()
        path = f"{_QUEUES}/{queue}/re-drive"
        return await self.web.client.post(path, content=content, headers=_token())

    async def park(self, *bodies: bytes) -> None:
        """Publish messages to the validator's dead-letter queue."""
        for number, body in enumerate(bodies):
            properties = Properties(message_id=f"m-{number}", headers={"n": number, "raw": b"\xff"})
            await self.system.send(Message("dlq.q.validator", "parking", body, properties))


@asynccontextmanager
async def _admin(folder: Path, *, hardened: bool = False) -> AsyncIterator[_Admin]:
    async with open_gateway(folder, secret=_SECRET, hardened=hardened) as web:
        yield _Admin(web)


@in_virtual_time
async def test_queues_are_listed_with_their_fields(tmp_path: Path) -> None:
    """All seven, sorted, with main queue, retry exchange, label and counts."""
    async with _admin(tmp_path) as admin:
        await admin.park(b"{}", b"{}")
        answer = await admin.get(_QUEUES)
        assert answer.status_code == 200
        found = answer.json()
        assert set(found) == {"items", "total"}
        assert found["total"] == 7
        names = [one["queue"] for one in found["items"]]
        assert names == sorted(_NAMES)
        (validator,) = [one for one in found["items"] if one["queue"] == "q.validator.dlq"]
        required = {
            "queue": "q.validator.dlq",
            "mainQueue": "q.validator",
            "retryExchange": "retry.q.validator",
            "label": "q.validator",
            "messages": 2,
            "messagesReady": 2,
            "messagesUnacknowledged": 0,
            "consumers": 0,
        }
        assert required.items() <= validator.items()
        assert validator.keys() <= {*required, "state", "idleSince"}
        assert set(ACCEPTED) == _NAMES


@in_virtual_time
async def test_peek_shows_messages_and_leaves_them_in_queue(tmp_path: Path) -> None:
    """JSON payloads are parsed, others are text or base64."""
    async with _admin(tmp_path) as admin:
        await admin.park(b'{"a": [1]}', b"plain", b"\xff\x00", b"NaN", b'"\\ud800"')
        for _ in range(3):
            answer = await admin.get(f"{_QUEUES}/q.validator.dlq/messages")
            assert answer.status_code == 200
        found = answer.json()
        items = found.pop("items")
        assert found == {
            "queue": "q.validator.dlq",
            "mainQueue": "q.validator",
            "retryExchange": "retry.q.validator",
            "requested": 20,
            "returned": 5,
        }
        shown = [(one["payload"], one["payloadEncoding"]) for one in items]
        assert shown == [
            ({"a": [1]}, "string"),
            ("plain", "string"),
            ("/wA=", "base64"),
            ("NaN", "string"),
            ("\ud800", "string"),
        ]
        first = items[0]
        assert (first["exchange"], first["routingKey"]) == ("dlq.q.validator", "parking")
        assert first["redelivered"] is True
        assert first["messageCountHint"] == 4
        assert first["properties"]["message_id"] == "m-0"
        assert first["properties"]["headers"] == {"n": 0, "raw": "/w=="}
        assert admin.system.dead_letter_counts() == {"q.validator": 5}


@in_virtual_time
async def test_peek_parses_at_most_one_mebibyte_of_json(tmp_path: Path) -> None:
    large = b'{"a": "' + b"x" * 600_000 + b'"}'
    async with _admin(tmp_path) as admin:
        await admin.park(large, large, b"{}")
        items = (await admin.get(f"{_QUEUES}/q.validator.dlq/messages")).json()["items"]
    assert [type(item["payload"]) for item in items] == [dict, str, dict]


@in_virtual_time
async def test_repeated_peeks_of_quorum_queue_lose_no_message(tmp_path: Path) -> None:
    """RabbitMQ 4.0 would delete a message at the 21st get. The hardened form has no such limit."""
    async with _admin(tmp_path, hardened=True) as admin:
        await admin.park(b"1", b"2", b"3")
        for _ in range(30):
            answer = await admin.get(f"{_QUEUES}/q.validator.dlq/messages")
            assert [one["payload"] for one in answer.json()["items"]] == [1, 2, 3]
        moved = (await admin.redrive("q.validator.dlq")).json()
        assert (moved["moved"], moved["failures"]) == (3, [])


@in_virtual_time
async def test_limit_bounds_number_of_messages(tmp_path: Path) -> None:
    """The default is 20 messages for a peek and 10 for a re-drive."""
    async with _admin(tmp_path) as admin:
        await admin.park(b"1", b"2", b"3")
        one = (await admin.get(f"{_QUEUES}/q.validator.dlq/messages", limit=1)).json()
        assert (one["requested"], one["returned"], one["items"][0]["payload"]) == (1, 1, 1)
        assert one["items"][0]["messageCountHint"] == 2
        moved = (await admin.redrive("q.validator.dlq", {"limit": 2})).json()
        assert (moved["requested"], moved["fetched"], moved["moved"]) == (2, 2, 2)
        rest = (await admin.redrive("q.validator.dlq", {})).json()
        assert (rest["requested"], rest["fetched"], rest["moved"]) == (10, 1, 1)


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5", "", "1e1", "٣", "true", "9" * 5000])
@in_virtual_time
async def test_limit_that_is_not_a_positive_integer_is_refused(tmp_path: Path, limit: str) -> None:
    """With the text of the document."""
    async with _admin(tmp_path) as admin:
        answer = await admin.get(f"{_QUEUES}/q.validator.dlq/messages", limit=limit)
        assert (answer.status_code, answer.json()["detail"]) == (
            400,
            "limit must be a positive integer.",
        )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"limit": 0}, "limit must be a positive integer."),
        ({"limit": -3}, "limit must be a positive integer."),
        ({"limit": "10"}, "limit must be a positive integer."),
        ({"limit": True}, "limit must be a positive integer."),
        ({"limit": 2.5}, "limit must be a positive integer."),
        ({"limit": 101}, "limit must be <= 100."),
        ([], 'Expected a JSON object like {"limit": 10}.'),
    ],
)
@in_virtual_time
async def test_redrive_with_invalid_limit_moves_no_message(
    tmp_path: Path, body: object, words: str
) -> None:
    async with _admin(tmp_path) as admin:
        await admin.park(b"{}")
        answer = await admin.redrive("q.validator.dlq", body)
        assert (answer.status_code, answer.json()["detail"]) == (400, words)
        assert admin.system.dead_letter_counts() == {"q.validator": 1}


@in_virtual_time
async def test_limit_above_100_returns_400(tmp_path: Path) -> None:
    """For a peek."""
    async with _admin(tmp_path) as admin:
        answer = await admin.get(f"{_QUEUES}/q.validator.dlq/messages", limit=101)
        assert answer.json()["detail"] == "limit must be <= 100."
        assert (await admin.get(f"{_QUEUES}/q.audit.dlq/messages", limit=100)).status_code == 200


@pytest.mark.parametrize(
    "queue", ["q.validator", "q.validator.retry", "other.dlq", "x'\"<b>", "%00"]
)
@in_virtual_time
async def test_unsupported_queue_returns_documented_400(tmp_path: Path, queue: str) -> None:
    """`Unsupported DLQ queue`, also for other existing queues."""
    async with _admin(tmp_path) as admin:
        for answer in (
            await admin.get(f"{_QUEUES}/{queue}/messages"),
            await admin.redrive(queue),
        ):
            assert answer.status_code == 400
            assert answer.json()["detail"].startswith("Unsupported DLQ queue ")


@in_virtual_time
async def test_error_is_problem_document_with_documented_fields(tmp_path: Path) -> None:
    """A problem document with the additional fields of the document's error body."""
    async with _admin(tmp_path) as admin:
        path = f"{_QUEUES}/q.validator/messages"
        headers = {**_token(), "x-correlation-id": "case-9", "accept-language": "pt"}
        answer = await admin.web.client.get(path, headers=headers)
        assert answer.headers["content-type"].startswith("application/problem+json")
        assert answer.headers["x-correlation-id"] == "case-9"
        assert answer.headers["content-language"] == "en"
        found = answer.json()
        assert found.pop("timestamp").endswith("Z")
        words = "Unsupported DLQ queue 'q.validator'."
        assert found == {
            "type": "about:blank",
            "title": "Bad Request",
            "status": 400,
            "detail": words,
            "instance": path,
            "code": "unsupported-queue",
            "correlationId": "case-9",
            "error": {"code": "unsupported-queue", "message": words},
            "statusCode": 400,
            "path": path,
            "method": "GET",
        }


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({}, 401, "Missing Authorization header."),
        ({"authorization": "Basic YTpi"}, 401, "Bearer"),
        ({"authorization": "Bearer nonsense"}, 401, "not accepted"),
        (_token(exp=1), 401, "expired"),
        (_token(aud="another"), 401, "audience"),
        (_token(roles=["operator", "viewer"]), 403, "Insufficient role to access this resource."),
        (_token(roles=[]), 403, "Insufficient role to access this resource."),
        (_token(roles="administrator"), 403, "Insufficient role to access this resource."),
    ],
    ids=["nothing", "basic", "nonsense", "expired", "audience", "operator", "no-role", "no-such"],
)
@in_virtual_time
async def test_admin_endpoints_need_role_admin(
    tmp_path: Path, headers: dict[str, str], status: int, words: str
) -> None:
    """On each of the three endpoints, with the document's error bodies."""
    async with _admin(tmp_path) as admin:
        await admin.park(b"{}")
        client, path = admin.web.client, f"{_QUEUES}/q.validator.dlq"
        for answer in (
            await client.get(_QUEUES, headers=headers),
            await client.get(f"{path}/messages", headers=headers),
            await client.post(f"{path}/re-drive", headers=headers),
        ):
            assert answer.status_code == status
            assert words in answer.json()["error"]["message"]
        assert admin.system.dead_letter_counts() == {"q.validator": 1}


@in_virtual_time
async def test_admin_endpoints_refuse_every_token_without_secret(tmp_path: Path) -> None:
    """A token with any signature is refused."""
    async with open_gateway(tmp_path) as web:
        assert (await web.client.get(_QUEUES, headers=_token())).status_code == 401


@in_virtual_time
async def test_redrive_publishes_to_retry_exchange_and_is_announced(tmp_path: Path) -> None:
    """To `retry.q.X` with the audit headers. After 15 s it reaches only `q.X` and is completed."""
    async with _admin(tmp_path) as admin:
        failed = await admin.web.upload_and_settle(broken_png(), "a.png", "image/png")
        admin.system.folder.file(failed["fileId"]).write_bytes(png())
        seen = admin.system.runs("q.extractor")
        answer = await admin.redrive("q.thumbnail.dlq", {"limit": 10})
        assert answer.status_code == 201
        result = answer.json()
        operation = result.pop("operationCorrelationId")
        assert result == {
            "queue": "q.thumbnail.dlq",
            "mainQueue": "q.thumbnail",
            "retryExchange": "retry.q.thumbnail",
            "requested": 10,
            "fetched": 1,
            "moved": 1,
            "failed": 0,
            "failures": [],
        }
        (waiting,) = admin.system.test.broker.snapshot().queue("q.thumbnail.retry").messages
        headers = waiting.properties.headers
        assert headers["x-redriven-from-dlq"] == "q.thumbnail.dlq"
        assert str(headers["x-redriven-at"]).endswith("Z")
        assert headers["x-redriven-by-user-id"] == "u-1"
        assert headers["x-redriven-by-user-name"] == "ada"
        assert headers["x-redrive-operation-correlation-id"] == operation
        assert headers["x-original-routing-key"] == "files.validated.v1"
        await admin.system.settle()
        assert admin.system.dead_letter_counts() == {}
        assert admin.system.runs("q.extractor") == seen
        shown = await admin.web.client.get(f"/files/{failed['fileId']}")
        assert shown.json()["status"] == "completed"
        (event,) = [
            json.loads(one.body)
            for one in admin.system.events()
            if one.routing_key == "operations.dlq.redrive.completed.v1"
        ]
        assert event["type"] == "DlqRedriveCompleted.v1"
        assert {"messageId", "kind", "occurredAt", "causationId", "producer", "version"} < set(
            event
        )
        assert event["correlationId"] == operation
        assert (event["payload"]["moved"], event["payload"]["redrivenByUserName"]) == (1, "ada")


@in_virtual_time
async def test_redrive_keeps_messages_in_dlq_if_publish_fails(tmp_path: Path) -> None:
    """Unconfirmed messages stay in the dead-letter queue, unlike in the document."""
    async with _admin(tmp_path) as admin:
        await admin.park(b"1", b"2")
        channel = await (await admin.system.test.broker.connect("operator")).open_channel()
        await channel.delete_queue("q.validator.retry")
        answer = await admin.redrive("q.validator.dlq")
        found = answer.json()
        assert (answer.status_code, found["moved"], found["failed"]) == (201, 0, 2)
        assert [one["index"] for one in found["failures"]] == [0, 1]
        assert all(one["reason"] for one in found["failures"])
        assert admin.system.dead_letter_counts() == {"q.validator": 2}


@in_virtual_time
async def test_admin_endpoints_return_503_while_broker_is_down(tmp_path: Path) -> None:
    """In the format of the contract, with Retry-After."""
    async with _admin(tmp_path) as admin:
        faults = admin.system.test.broker.faults
        faults.inject(Fault.REFUSE_CONNECTION, times=1000)
        admin.system.test.broker.cut()
        answer = await admin.get(_QUEUES)
        faults.clear()
        assert (answer.status_code, answer.json()["statusCode"]) == (503, 503)
        assert "retry-after" in answer.headers
