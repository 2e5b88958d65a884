"""Queues, browse sessions and messages by the API."""

from __future__ import annotations

from hopback.broker.embedded import Fault
from hopback.topology.model import Queue, QueueType
from tests.unit.ops.admin_service import DLQ, MAIN, admin, dead_letter


async def test_a_queue_tells_what_looking_costs_and_where_messages_can_go() -> None:
    """The detail of a queue has type, depth with source and age, cost and targets."""
    async with admin(dead_letter(1), dead_letter(2)) as service:
        found = (await service.client.get(f"/admin/dlq/queues/{DLQ}")).json()
    assert (found["queue"], found["mainQueue"], found["type"]) == (DLQ, MAIN, "quorum")
    assert found["depth"]["messages"] == 2
    assert found["depth"]["source"] == "amqp"
    assert found["cost"]["price"] in {"free", "counted"}
    default = next(target for target in found["targets"] if target["isDefault"])
    assert (default["exchange"], default["routingKey"], default["flaw"]) == ("", MAIN, None)


async def test_the_overview_comes_from_one_sweep_and_never_looks() -> None:
    """Depths carry the moment of the sweep; a second question within a second asks nobody."""
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


async def test_a_session_holds_pages_groups_and_gives_back() -> None:
    """Messages are held while they are looked at and back in order after release."""
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


async def test_a_message_is_shown_whole_and_its_showing_is_audited() -> None:
    """Story, way back, headers with their types, payload; and who looked is written down."""
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


async def test_a_bad_filter_is_refused_at_once_with_its_term() -> None:
    """400 names the term."""
    async with admin(dead_letter(1)) as service:
        session = await service.session()
        answer = await service.client.get(
            f"{session['url']}/messages", params={"filter": "nonsense>1"}
        )
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-filter")
    assert "nonsense>1" in answer.json()["detail"]


async def test_looking_that_could_lose_messages_is_refused_with_its_price() -> None:
    """A quorum queue with the default limit of 20: 409 and the remedy; by lifting, it can be done."""
    risky = Queue("plain.dlq", QueueType.QUORUM), Queue("plain", QueueType.QUORUM)
    async with admin(extra=risky, version="4.0") as service:
        refused = await service.client.post("/admin/dlq/queues/plain.dlq/sessions", json={})
        assert (refused.status_code, refused.json()["code"]) == (409, "unsafe")
        lifted = await service.session("plain.dlq", lift=True)
        assert lifted["cost"]["price"] != "refused"


async def test_one_caller_holds_only_so_many_sessions() -> None:
    """The sixth session of one caller is refused with the URLs of the others."""
    async with admin(*(dead_letter(n) for n in range(9))) as service:
        held = [(await service.session(limit=1))["url"] for _ in range(5)]
        answer = await service.client.post(f"/admin/dlq/queues/{DLQ}/sessions", json={"limit": 1})
    assert (answer.status_code, answer.json()["code"]) == (429, "too-many-sessions")
    assert sorted(answer.json()["sessions"]) == sorted(held)


async def test_a_name_with_slashes_and_spaces_is_one_name() -> None:
    """A queue's name travels percent-encoded, whatever is in it."""
    odd = Queue("eu/orders é.dlq"), Queue("eu/orders é")
    async with admin(extra=odd) as service:
        answer = await service.client.get("/admin/dlq/queues/eu%2Forders%20%C3%A9.dlq")
    assert answer.json()["queue"] == "eu/orders é.dlq"


async def test_a_path_that_is_not_utf8_is_a_400() -> None:
    """For a program a problem with its code, in a browser a page."""
    async with admin() as service:
        for path in ("/admin/dlq/queues/%FF", "/queues/%FF"):
            answer = await service.client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (400, "bad-path")
            assert answer.json()["instance"] == path
        page = await service.client.get("/queues/%FF", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["content-type"]) == (400, "text/html; charset=utf-8")


async def test_a_slash_too_many_leads_to_the_page() -> None:
    """A path with a slash at its end is sent on; one that is nowhere is a 404 as it was asked for."""
    async with admin() as service:
        led = await service.client.get("/jobs/")
        nowhere = await service.client.get("/no%20where")
    assert (led.status_code, led.headers["location"].endswith("/jobs")) == (307, True)
    assert (nowhere.status_code, nowhere.json()["instance"]) == (404, "/no%20where")


async def test_an_unreachable_broker_is_a_503_until_it_is_back() -> None:
    """The service stays up, says why, and recovers by itself."""
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
