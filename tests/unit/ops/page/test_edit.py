"""A changed copy sent back, and a delivery limit restored: by the API and on the page."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker.embedded import run_virtual
from hopback.ops.contract.roles import Grant, Role
from hopback.ops.http.keys import new_key
from hopback.ops.jobs.edited_copy import COPY_OF
from hopback.ops.messages.diff import diff_lines
from hopback.topology.model import Queue, QueueType
from tests.unit.ops.admin_service import DLQ, MAIN, NOW, Admin, admin, dead_letter, settings

if TYPE_CHECKING:
    from hopback.ops.http import AdminSettings


async def _message(service: Admin) -> str:
    """The URL of the one message of a new session."""
    session = await service.session()
    (found,) = (await service.client.get(f"{session['url']}/messages")).json()["items"]
    return f"{session['url']}/messages/{found['id']}"


def _sent(service: Admin) -> list[Any]:
    return list(service.broker.snapshot().queue(MAIN).ready)


async def _audit_entries(service: Admin, action: str) -> list[dict[str, Any]]:
    found = await service.client.get("/admin/audit", params={"action": action})
    items: list[dict[str, Any]] = found.json()["items"]
    return items


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "edit",
    [
        {"headers": {"n": 2**70}},
        {"headers": {"n": -(2**63) - 1}},
        {"headers": {"n": [1, 2**64]}},
        {"headers": {"deep": _nested(300)}},
        {"headers": {"ä" * 200: 1}},
        {"contentType": "ä" * 200},
    ],
    ids=lambda edit: str(edit)[:24],
)
async def test_edit_that_amqp_cannot_carry_is_unprocessable(edit: dict[str, Any]) -> None:
    async with admin(dead_letter(1), editing=True) as service:
        message = await _message(service)
        asked = {"edit": edit, "reason": "x"}
        answer = await service.client.post(f"{message}/edit", json=asked)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid"), answer.text
        assert _sent(service) == []


async def test_edit_by_api_publishes_copy_and_keeps_original() -> None:
    """The copy has a new id and names the original. The audit has the reason."""
    async with admin(dead_letter(1), editing=True) as service:
        message = await _message(service)
        body = base64.b64encode(b'{"order": 7}').decode()
        edit = {"body": body, "headers": {"tenant": "acme"}}
        answer = await service.client.post(
            f"{message}/edit", json={"edit": edit, "reason": "no tenant"}
        )
        assert answer.status_code == 201
        (sent,) = _sent(service)
        assert (sent.body, sent.properties.message_id) == (
            b'{"order": 7}',
            answer.json()["messageId"],
        )
        assert sent.properties.headers[COPY_OF] == "m-1"
        assert sent.properties.headers["tenant"] == "acme"
        (entry,) = await _audit_entries(service, "message.edit")
        assert (entry["by"], entry["reason"], entry["queue"]) == ("local", "no tenant", DLQ)
        assert (await service.client.get(message)).status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"edit": {}}, "reason: expected a value, got none"),
        ({"edit": {"body": "%"}, "reason": "x"}, "edit.body: expected"),
        ({"edit": {"extra": 1}, "reason": "x"}, "edit.extra: expected one of body, "),
        ({"edit": {"headers": {"hopback-attempts": 0}}, "reason": "x"}, "hopback-attempts"),
    ],
)
async def test_invalid_edit_is_422_and_names_part(body: dict[str, Any], words: str) -> None:
    async with admin(dead_letter(1), editing=True) as service:
        answer = await service.client.post(f"{await _message(service)}/edit", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
        assert words in answer.json()["detail"]
        assert _sent(service) == []


async def test_edit_is_refused_unless_enabled() -> None:
    async with admin(dead_letter(1)) as service:
        message = await _message(service)
        answer = await service.client.post(f"{message}/edit", json={"edit": {}, "reason": "x"})
        page = message.removeprefix("/admin/dlq")
        shown, edit = await service.client.get(page), await service.client.get(f"{page}/edit")
    assert (answer.status_code, answer.json()["code"]) == (403, "switched-off")
    assert ("Re-drive this message" in shown.text, "Edit and re-drive" in shown.text) == (
        True,
        False,
    )
    assert edit.status_code == 403


def _team() -> tuple[AdminSettings, dict[str, str]]:
    """Settings with a key for an operator of the queue and its dead-letter queue, and its header."""
    grant = Grant(Role.OPERATOR, (MAIN, DLQ))
    secret, key = new_key("team", grant, expires=None, made_by="", now=NOW)
    kept = {"name": key.name, "hash": key.hash, "role": "operator", "queues": [MAIN, DLQ]}
    return settings(keys=[kept]), {"Authorization": f"Bearer {secret}"}


async def test_edit_requires_grant_for_target() -> None:
    rules, team = _team()
    elsewhere = Queue("vault", QueueType.QUORUM)
    async with admin(dead_letter(1), editing=True, settings=rules, extra=(elsewhere,)) as service:
        opened = await service.client.post(f"/admin/dlq/queues/{DLQ}/sessions", headers=team)
        messages = f"{opened.json()['url']}/messages"
        (found,) = (await service.client.get(messages, headers=team)).json()["items"]
        message = f"{messages}/{found['id']}"
        target = {"kind": "queue", "routingKey": "vault"}
        order = {"edit": {"headers": {"a": "b"}}, "reason": "x", "target": target}
        answer = await service.client.post(f"{message}/edit", json=order, headers=team)
        form = {"headers": "a: b", "reason": "x", "target": "queue", "target_queue": "vault"}
        page = f"{message.removeprefix('/admin/dlq')}/edit"
        for step in ("review", "go"):
            shown = await service.client.post(page, data=form | {"step": step}, headers=team)
            assert shown.status_code == 403
        assert answer.status_code == 403
        assert not service.broker.snapshot().queue("vault").ready
        order["target"] = {"kind": "design"}
        fine = await service.client.post(f"{message}/edit", json=order, headers=team)
        assert fine.status_code == 201


async def test_page_shows_diff_before_edited_copy_is_sent() -> None:
    """Line ends changed by the form are restored."""
    body = b'{\n "order": {"id": 1},\n "note": "</textarea>"\n}'
    async with admin(dead_letter(1, body=body), editing=True) as service:
        message = (await _message(service)).removeprefix("/admin/dlq")
        assert f'href="{message}/edit"' in (await service.client.get(message)).text
        first = await service.client.get(f"{message}/edit")
        assert "&lt;/textarea&gt;" in first.text
        changed = body.replace(b'"id": 1', b'"id": 2').decode().replace("\n", "\r\n")
        form = {"body": changed, "content_type": "application/json", "headers": "tenant: acme"}
        form |= {"without": "", "reason": "wrong id", "target": "design"}
        review = await service.client.post(f"{message}/edit", data=form | {"step": "review"})
        assert '<del>-     "id": 1</del>' in review.text.replace("&#34;", '"')
        assert '<ins>+     "id": 2</ins>' in review.text.replace("&#34;", '"')
        assert "<ins>+ tenant: acme</ins>" in review.text
        assert _sent(service) == []
        back = await service.client.post(f"{message}/edit", data=form | {"step": "back"})
        assert "tenant: acme" in back.text
        sent = await service.client.post(f"{message}/edit", data=form | {"step": "go"})
        assert (sent.status_code, sent.headers["location"]) == (303, f"{message}?told=copy-sent")
        (copy,) = _sent(service)
        assert copy.body == body.replace(b'"id": 1', b'"id": 2')
        assert copy.properties.headers["tenant"] == "acme"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "a difference from"),
        ({"headers": "no colon"}, "expected name: value"),
        ({"content_type": "text/plain", "reason": " "}, "a reason"),
        ({"headers": "x-death: 1"}, "x-death"),
    ],
)
async def test_edit_that_cannot_be_sent_keeps_form_values(
    fields: dict[str, str], words: str
) -> None:
    async with admin(dead_letter(1, body=b"text"), editing=True) as service:
        message = (await _message(service)).removeprefix("/admin/dlq")
        form = {"body": "text", "content_type": "application/json", "reason": "x", "step": "go"}
        answer = await service.client.post(f"{message}/edit", data=form | fields)
        assert (answer.status_code, words in answer.text) == (200, True)
        assert _sent(service) == []


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe", b"a\r\nb\nc", b"a\rb", b"nul\0", b"x" * 70_000],
    ids=["binary", "mixed", "cr", "nul", "large"],
)
async def test_payload_that_form_would_change_is_read_only(body: bytes) -> None:
    """Its headers can be changed on the page."""
    async with admin(dead_letter(1, body=body), editing=True) as service:
        message = (await _message(service)).removeprefix("/admin/dlq")
        shown = await service.client.get(f"{message}/edit")
        assert 'name="body"' not in shown.text
        form = {"content_type": "application/json", "headers": "a: b", "reason": "x"}
        sent = await service.client.post(f"{message}/edit", data=form | {"step": "go"})
        assert sent.status_code == 303
        (copy,) = _sent(service)
        assert copy.body == body


def test_diff_counts_unchanged_lines_and_shows_large_change_whole() -> None:
    before = [f"line {n}" for n in range(20)]
    after = [*before[:10], "changed", *before[11:]]
    assert list(diff_lines(before, after)) == [
        (" ", "line 0"),
        (" ", "line 1"),
        (" ", "line 2"),
        ("…", "4 unchanged lines"),
        (" ", "line 7"),
        (" ", "line 8"),
        (" ", "line 9"),
        ("-", "line 10"),
        ("+", "changed"),
        (" ", "line 11"),
        (" ", "line 12"),
        (" ", "line 13"),
        ("…", "3 unchanged lines"),
        (" ", "line 17"),
        (" ", "line 18"),
        (" ", "line 19"),
    ]
    large = list(diff_lines([str(n) for n in range(1000)], [str(-n) for n in range(1000)]))
    assert [mark for mark, _ in large].count("+") == 999
    assert list(diff_lines([], [])) == []
    assert list(diff_lines(["same"], ["same"])) == [(" ", "same")]


_JOBS = (Queue("jobs.dlq", QueueType.QUORUM), Queue("jobs"))


def test_lifted_limit_is_restored_by_api_and_page() -> None:
    """The audit has the reason. A queue is watched for 15 s before."""
    run_virtual(_lift_and_restore())


async def _lift_and_restore() -> None:
    queue = "/admin/dlq/queues/jobs.dlq"
    async with admin(extra=_JOBS) as service:
        reason = {"reason": "a look"}
        lifted = await service.client.post(f"{queue}/lift-limit", json=reason)
        assert (lifted.status_code, "jobs.dlq" in lifted.json()["policy"]) == (200, True)
        assert (await service.client.get(queue)).json()["limitLifted"]
        page = await service.client.get("/queues/jobs.dlq")
        assert "Restore the delivery limit" in page.text
        restored = await service.client.post("/queues/jobs.dlq/restore-limit", data={"reason": "x"})
        assert restored.headers["location"] == "/queues/jobs.dlq?told=limit-restored"
        assert not (await service.client.get(queue)).json()["limitLifted"]
        again = await service.client.post(f"{queue}/restore-limit")
        assert again.status_code == 204
        unknown = await service.client.post("/admin/dlq/queues/no.such.dlq/restore-limit")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "not-found")
        assert (await service.client.post("/queues/no.such.dlq/restore-limit")).status_code == 404
        audit = await _audit_entries(service, "limit.restore")
        assert [entry["reason"] for entry in audit] == ["", "x"]


async def test_operator_of_another_queue_cannot_lift_or_restore_limit() -> None:
    queue = "/admin/dlq/queues/jobs.dlq"
    rules, team = _team()
    async with admin(extra=_JOBS, settings=rules) as service:
        for path in (f"{queue}/lift-limit", f"{queue}/restore-limit"):
            assert (await service.client.post(path, headers=team)).status_code == 403
        shown = await service.client.post("/queues/jobs.dlq/restore-limit", headers=team)
        assert shown.status_code == 403
