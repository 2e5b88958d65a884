"""Queues, browse sessions and messages by the API."""

from __future__ import annotations

import pytest

from hopback.broker.embedded import Fault
from hopback.ops.http.settings import AdminSettings, RequestLimits
from hopback.topology.model import Queue, QueueType
from tests.unit.ops.admin_service import DLQ, MAIN, admin, dead_letter


async def test_queue_shows_browse_cost_and_targets() -> None:
    async with admin(dead_letter(1), dead_letter(2)) as service:
        found = (await service.client.get(f"/admin/dlq/queues/{DLQ}")).json()
    assert (found["queue"], found["mainQueue"], found["type"]) == (DLQ, MAIN, "quorum")
    assert found["depth"]["messages"] == 2
    assert found["depth"]["source"] == "amqp"
    assert found["cost"]["price"] in {"free", "counted"}
    default = next(target for target in found["targets"] if target["isDefault"])
    assert (default["exchange"], default["routingKey"], default["flaw"]) == ("", MAIN, None)


async def test_overview_uses_one_cached_snapshot_and_touches_no_message() -> None:
    async with admin(dead_letter(1)) as service:
        first = (await service.client.get("/admin/dlq/overview")).json()
        connections = len(service.broker.connections)
        service.clock.advance(0.5)
        second = (await service.client.get("/admin/dlq/overview")).json()
        assert len(service.broker.connections) == connections
        queue = service.broker.snapshot().queue(DLQ)
    assert [item["queue"] for item in first["items"]] == [DLQ]
    assert second["readAt"] == first["readAt"]
    assert second["ageSeconds"] == 0.5
    assert [message.redelivered for message in queue.ready] == [False]


async def test_session_holds_pages_groups_and_returns_messages() -> None:
    dead_letters = [
        dead_letter(number, "LookupError" if number < 3 else "KeyError") for number in range(5)
    ]
    async with admin(*dead_letters) as service:
        session = await service.session(limit=10)
        assert (session["held"], session["complete"]) == (5, True)
        page = (await service.client.get(f"{session['url']}/messages?limit=2")).json()
        assert [item["messageId"] for item in page["items"]] == ["m-0", "m-1"]
        assert page["matching"] == 5
        more = await service.client.get(
            f"{session['url']}/messages",
            params={"cursor": page["cursor"], "filter": "error:KeyError"},
        )
        assert [item["messageId"] for item in more.json()["items"]] == ["m-3", "m-4"]
        groups = (await service.client.get(f"{session['url']}/groups?by=error")).json()
        assert {item["key"]: item["count"] for item in groups["items"]} == {
            "LookupError": 3,
            "KeyError": 2,
        }
        assert (await service.client.delete(session["url"])).status_code == 204
        gone = await service.client.get(session["url"])
        assert (gone.status_code, gone.json()["code"]) == (404, "session-over")
        ready = service.broker.snapshot().queue(DLQ).ready
    assert [message.properties.message_id for message in ready] == [f"m-{n}" for n in range(5)]


async def test_refusal_of_unknown_grouping_is_documented() -> None:
    async with admin(dead_letter(1)) as service:
        session = await service.session()
        refused = await service.client.get(f"{session['url']}/groups?by=nonsense")
        document = (await service.client.get("/openapi.json")).json()
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert "got 'nonsense'" in refused.json()["detail"]
    grouping = document["paths"]["/admin/dlq/sessions/{session}/groups"]["get"]
    assert "422" in grouping["responses"]


async def test_message_view_is_complete_and_audited() -> None:
    """It has history, target, typed headers and payload."""
    async with admin(dead_letter(7)) as service:
        session = await service.session()
        listed = (await service.client.get(f"{session['url']}/messages")).json()["items"][0]
        found = (await service.client.get(f"{session['url']}/messages/{listed['id']}")).json()
        body = await service.client.get(found["bodyUrl"])
        audit = (await service.client.get("/admin/audit?action=message.show")).json()["items"]
    assert found["payload"] == {"order": {"id": 7}}
    assert "LookupError" in found["sentence"]
    assert found["way"] == {"exchange": "", "routingKey": MAIN, "count": 1, "flaw": None}
    assert {"name": "hopback-attempts", "type": "int64", "value": 2} in found["headers"]
    assert body.content == b'{"order": {"id": 7}}'
    assert body.headers["content-disposition"].startswith("attachment;")
    assert body.headers["x-content-type-options"] == "nosniff"
    assert [entry["queue"] for entry in audit] == [DLQ, DLQ]


async def test_invalid_filter_is_400_and_names_term() -> None:
    async with admin(dead_letter(1)) as service:
        session = await service.session()
        answer = await service.client.get(
            f"{session['url']}/messages", params={"filter": "nonsense>1"}
        )
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-filter")
    assert "nonsense>1" in answer.json()["detail"]


async def test_session_on_limited_queue_is_409_until_limit_is_lifted() -> None:
    """The queue is a quorum queue with the default limit of 20."""
    risky = Queue("plain.dlq", QueueType.QUORUM), Queue("plain", QueueType.QUORUM)
    async with admin(extra=risky, version="4.0") as service:
        refused = await service.client.post("/admin/dlq/queues/plain.dlq/sessions", json={})
        assert (refused.status_code, refused.json()["code"]) == (409, "unsafe")
        lifted = await service.session("plain.dlq", lift=True)
        assert lifted["cost"]["price"] != "refused"


async def test_sixth_session_of_caller_is_429_with_urls_of_others() -> None:
    async with admin(*(dead_letter(n) for n in range(9))) as service:
        held = [(await service.session(limit=1))["url"] for _ in range(5)]
        answer = await service.client.post(f"/admin/dlq/queues/{DLQ}/sessions", json={"limit": 1})
    assert (answer.status_code, answer.json()["code"]) == (429, "too-many-sessions")
    assert sorted(answer.json()["sessions"]) == sorted(held)


async def test_configured_number_of_sessions_takes_effect() -> None:
    limits = RequestLimits(sessions=22, sessions_per_caller=50)
    async with admin(
        *(dead_letter(n) for n in range(30)), settings=AdminSettings(limits=limits)
    ) as service:
        for _ in range(22):
            await service.session(limit=1)
        answer = await service.client.post(f"/admin/dlq/queues/{DLQ}/sessions", json={"limit": 1})
    assert (answer.status_code, answer.json()["code"]) == (429, "too-much-held")


async def test_queue_name_with_slashes_and_spaces_is_percent_encoded() -> None:
    odd = Queue("eu/orders é.dlq"), Queue("eu/orders é")
    async with admin(extra=odd) as service:
        answer = await service.client.get("/admin/dlq/queues/eu%2Forders%20%C3%A9.dlq")
    assert answer.json()["queue"] == "eu/orders é.dlq"


async def test_path_with_invalid_utf8_is_400() -> None:
    """An API client gets a problem document, a browser gets a page."""
    async with admin() as service:
        for path in ("/admin/dlq/queues/%FF", "/queues/%FF"):
            answer = await service.client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (400, "bad-path")
            assert answer.json()["instance"] == path
        page = await service.client.get("/queues/%FF", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["content-type"]) == (400, "text/html; charset=utf-8")


async def test_trailing_slash_redirects_and_unknown_path_is_404() -> None:
    async with admin() as service:
        led = await service.client.get("/jobs/")
        nowhere = await service.client.get("/no%20where")
    assert (led.status_code, led.headers["location"].endswith("/jobs")) == (307, True)
    assert (nowhere.status_code, nowhere.json()["instance"]) == (404, "/no%20where")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        (f"/queues/{DLQ}/re-drive", "GET, HEAD, POST"),
        ("/admin/dlq/candidates", "GET, HEAD, PUT"),
        ("/login", "GET, HEAD, POST"),
        ("/static/page.css", "GET, HEAD"),
    ],
)
async def test_wrong_method_is_405_and_names_every_method(path: str, methods: str) -> None:
    async with admin() as service:
        refused = await service.client.delete(path, headers={"X-Hopback-Request": "1"})
    assert (refused.status_code, refused.headers["allow"]) == (405, methods)


async def test_unreachable_broker_is_503_until_it_returns() -> None:
    async with admin(dead_letter(1)) as service:
        service.broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
        refused = await service.client.get(f"/admin/dlq/queues/{DLQ}")
        assert (refused.status_code, refused.json()["code"]) == (503, "broker-unreachable")
        assert refused.headers["retry-after"]
        assert (await service.client.get("/healthz")).status_code == 200
        page = await service.client.get(f"/queues/{DLQ}")
        assert (page.status_code, "does not answer" in page.text) == (503, True)
        service.broker.faults.clear()
        assert (await service.client.get(f"/admin/dlq/queues/{DLQ}")).status_code == 200
