"""Jobs by the API: planned, begun, followed, steered."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from tests.unit.ops.admin_service import DLQ, MAIN, admin, dead_letter

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.ops.admin_service import Admin


def _order(**more: Any) -> dict[str, Any]:
    return {"kind": "re-drive", "queue": DLQ, "reason": "fixed", **more}


async def _wait_for(service: Admin, job: dict[str, Any]) -> dict[str, Any]:
    await service.operations.wait(job["id"])
    found: dict[str, Any] = (await service.client.get(job["url"])).json()
    return found


async def test_dry_run_returns_plan_and_moves_no_message() -> None:
    """The plan has counts, errors and the routing check."""
    async with admin(*(dead_letter(n) for n in range(3))) as service:
        answer = await service.client.post("/admin/dlq/jobs", json=_order(dryRun=True))
        ready = service.broker.snapshot().queue(DLQ).ready
    plan = answer.json()
    assert answer.status_code == 200
    assert (plan["selected"], plan["matching"], plan["mayStart"]) == (3, 3, True)
    assert [(way["routingKey"], way["flaw"]) for way in plan["ways"]] == [(MAIN, None)]
    assert [(group["key"], group["count"]) for group in plan["errors"]] == [("LookupError", 3)]
    assert len(ready) == 3


async def test_redrive_returns_202_with_job_url() -> None:
    """All messages return to the queue that failed."""
    async with admin(*(dead_letter(n) for n in range(3))) as service:
        answer = await service.client.post("/admin/dlq/jobs", json=_order(expectedCount=3))
        assert answer.status_code == 202
        assert answer.headers["location"] == answer.json()["url"]
        job = await _wait_for(service, answer.json())
        listed = (await service.client.get("/admin/dlq/jobs")).json()
        queues = service.broker.snapshot()
        audit = (await service.client.get("/admin/audit?action=job.start")).json()["items"]
    assert (job["state"], job["counts"]["done"], job["reason"]) == ("completed", 3, "fixed")
    assert [each["id"] for each in listed["items"]] == [job["id"]]
    assert (len(queues.queue(MAIN).ready), len(queues.queue(DLQ).ready)) == (3, 0)
    assert [(entry["by"], entry["reason"]) for entry in audit] == [("local", "fixed")]


async def test_repeated_idempotency_key_returns_same_job() -> None:
    headers = {"Idempotency-Key": "once"}
    async with admin(dead_letter(1), dead_letter(2)) as service:
        first = await service.client.post(
            "/admin/dlq/jobs", json=_order(selection={"limit": 1}), headers=headers
        )
        await _wait_for(service, first.json())
        second = await service.client.post(
            "/admin/dlq/jobs", json=_order(selection={"limit": 1}), headers=headers
        )
        assert len(service.broker.snapshot().queue(DLQ).ready) == 1
    assert second.json()["id"] == first.json()["id"]


async def test_second_job_of_queue_is_409_with_url_of_first() -> None:
    slow = {"rate": 0.1}
    async with admin(*(dead_letter(n) for n in range(3))) as service:
        first = (await service.client.post("/admin/dlq/jobs", json=_order(pace=slow))).json()
        second = await service.client.post("/admin/dlq/jobs", json=_order())
        assert (second.status_code, second.json()["job"]) == (409, first["url"])
        cancelled = await service.client.post(f"{first['url']}/cancel")
        assert cancelled.status_code == 200
        assert (await _wait_for(service, first))["state"] == "cancelled"
        again = await service.client.post(f"{first['url']}/resume")
        assert again.status_code == 409


async def test_selection_may_exceed_ten_million_messages() -> None:
    """The job of a larger queue contained a limit that could not be read again."""
    async with admin(dead_letter(1)) as service:
        order = _order(selection={"limit": 20_000_000})
        answer = await service.client.post("/admin/dlq/jobs", json=order)
        assert answer.status_code == 202
        assert (await _wait_for(service, answer.json()))["counts"]["done"] == 1


async def test_unexpected_count_is_409_and_moves_no_message() -> None:
    async with admin(dead_letter(1)) as service:
        answer = await service.client.post("/admin/dlq/jobs", json=_order(expectedCount=5))
        assert len(service.broker.snapshot().queue(DLQ).ready) == 1
    assert (answer.status_code, answer.json()["code"]) == (409, "count-mismatch")


async def test_discard_requires_queue_name_and_writes_archive(tmp_path: Path) -> None:
    """Without the name, the status is 422."""
    order = {"kind": "discard", "queue": DLQ, "reason": "obsolete"}
    async with admin(dead_letter(1), exports=tmp_path) as service:
        refused = await service.client.post("/admin/dlq/jobs", json=order)
        assert refused.status_code == 422
        answer = await service.client.post("/admin/dlq/jobs", json={**order, "confirm": DLQ})
        job = await _wait_for(service, answer.json())
        assert service.broker.snapshot().queue(DLQ).ready == ()
    assert job["counts"]["done"] == 1
    assert len(os.listdir(tmp_path)) == 1


async def test_refused_request_names_each_wrong_field_with_known_values() -> None:
    """Misspelled kinds, fields and query parameters get a suggestion."""
    async with admin(dead_letter(1)) as service:

        async def refusal(body: dict[str, Any]) -> str:
            answer = await service.client.post("/admin/dlq/jobs", json=body)
            assert answer.status_code == 422
            detail: str = answer.json()["detail"]
            return detail

        assert await refusal({"queue": DLQ}) == (
            "The body: kind: expected one of re-drive, discard, got none."
        )
        assert await refusal(_order(kind="redrive")) == (
            "The body: kind: expected one of re-drive, discard, got 'redrive'"
            " (did you mean re-drive?)."
        )
        assert await refusal(_order(selection={"filtre": "a"}, pace={"rate": "fast"})) == (
            "The body: selection.filtre: expected one of session, ids, filter, limit, queue, count,"
            " estimate, mark, place, got 'filtre' (did you mean filter?);"
            " pace.rate: expected a number or null, got 'fast'."
        )
        assert await refusal(_order(target={"exchange": "shop.events"})) == (
            "The body: target: expected exchange only with kind exchange, got 'shop.events' with"
            " kind design."
        )
        queries = [
            (await service.client.get(f"/admin/dlq/jobs?{query}")).json()["detail"]
            for query in ("limit=abc", "lmit=5")
        ]
        trend = await service.client.get(f"/admin/dlq/queues/{DLQ}/trend?hours=5")
    assert trend.json()["detail"] == "The query: hours: expected no fields, got 'hours'."
    assert queries[0] == "The query: limit: expected a whole number, got 'abc'."
    assert "lmit: expected one of " in queries[1]
    assert "(did you mean limit?)" in queries[1]


async def test_job_events_stream_until_job_ends() -> None:
    async with admin(dead_letter(1)) as service:
        job = (await service.client.post("/admin/dlq/jobs", json=_order())).json()
        answer = await service.client.get(f"{job['url']}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    last = json.loads(events[-2][-1].removeprefix("data: "))
    assert (events[-1][0], last["state"], last["counts"]["done"]) == ("event: end", "completed", 1)


async def test_redrive_of_selected_ids_returns_others_in_order() -> None:
    async with admin(*(dead_letter(n) for n in range(4))) as service:
        session = await service.session()
        items = (await service.client.get(f"{session['url']}/messages")).json()["items"]
        chosen = {"session": session["id"], "ids": [items[1]["id"], items[3]["id"]]}
        order = _order(selection=chosen, expectedCount=2)
        job = (await service.client.post("/admin/dlq/jobs", json=order)).json()
        await _wait_for(service, job)
        left = service.broker.snapshot().queue(DLQ).ready
    assert [message.properties.message_id for message in left] == ["m-0", "m-2"]


async def test_invalid_job_request_names_place_and_expected_value() -> None:
    """Wrong types, unknown fields, a missing reason and invalid JSON are refused."""
    async with admin() as service:
        for body, status, words in [
            ({"kind": "steal", "queue": DLQ, "reason": "x"}, 422, "kind"),
            ({"kind": "re-drive", "queue": DLQ, "reason": ""}, 422, "reason"),
            ({"kind": "re-drive", "queue": DLQ, "reason": "x", "ratee": 1}, 422, "ratee"),
            ({"kind": "re-drive", "queue": "nowhere", "reason": "x"}, 404, "nowhere"),
        ]:
            answer = await service.client.post("/admin/dlq/jobs", json=body)
            assert (answer.status_code, words in answer.json()["detail"]) == (status, True), body
        text = await service.client.post("/admin/dlq/jobs", content="{", headers=_JSON)
        assert (text.status_code, text.json()["code"]) == (400, "bad-json")
        form = await service.client.post("/admin/dlq/jobs", data={"kind": "re-drive"})
        assert (form.status_code, form.json()["code"]) == (415, "not-json")


_JSON = {"Content-Type": "application/json"}
