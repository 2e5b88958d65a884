"""Notes on groups, saved filters and the history of a group: by the library, by HTTP and on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.errors import BadFilter, BadRequest, NoSuch
from hopback.ops.client import RemoteDeadLetters
from hopback.ops.contract.requests import AuditQuery, Who
from hopback.ops.notes.values import NewFilter, NewNote
from tests.unit.ops.admin_service import DLQ, admin, dead_letter, settings
from tests.unit.ops.http.test_access import _bearer, _token

if TYPE_CHECKING:
    import httpx

_SAME = {"Sec-Fetch-Site": "same-origin"}
_QUEUE = f"/admin/dlq/queues/{DLQ}"


async def test_note_is_shared_and_audited() -> None:
    """Notes are listed newest first, by group or for all. A deleted note stays in the audit."""
    async with admin(dead_letter(1)) as service:
        ann = service.operations.on_behalf_of(Who("u-1", "Ann")).notes
        first = await ann.add(DLQ, NewNote("abcd1234", "known, fixed in 2.3"))
        service.clock.advance(1)
        await ann.add(DLQ, NewNote("ffff0000", "ask the warehouse"))
        other = service.operations.on_behalf_of(Who("u-2", "Ben")).notes
        assert [one.text for one in await other.of(DLQ)] == ["ask the warehouse", first.text]
        assert [one.by for one in await other.of(DLQ, "abcd")] == ["Ann"]
        assert await other.of("another.dlq") == ()
        await other.remove(DLQ, first.id)
        with pytest.raises(NoSuch):
            await other.remove(DLQ, first.id)
        entries = await service.operations.audit(AuditQuery(queue=DLQ))
    assert [(one.action, one.by) for one in entries] == [
        ("note.remove", "Ben"),
        ("note.add", "Ann"),
        ("note.add", "Ann"),
    ]
    assert entries[0].details["text"] == "known, fixed in 2.3"


async def test_notes_and_filters_have_limits() -> None:
    """An empty note and an invalid filter are refused."""
    async with admin() as service:
        notes = service.operations.notes
        with pytest.raises(BadRequest):
            await notes.add(DLQ, NewNote("abcd", "  "))
        with pytest.raises(BadFilter):
            await notes.save_filter(DLQ, NewFilter("bad", "age>"))
        for number in range(200):
            await notes.add(DLQ, NewNote("abcd", f"note {number}"))
        with pytest.raises(BadRequest, match="at most 200 notes"):
            await notes.add(DLQ, NewNote("abcd", "one more"))
        for number in range(100):
            await notes.save_filter(DLQ, NewFilter(f"f{number}", "age>2h"))
        await notes.save_filter(DLQ, NewFilter("f1", "age>3h"))
        with pytest.raises(BadRequest, match="at most 100 filters"):
            await notes.save_filter(DLQ, NewFilter("one more", "age>2h"))


async def test_group_history_lists_its_jobs_and_notes() -> None:
    async with admin(dead_letter(1), dead_letter(2, "KeyError")) as service:
        session = await service.session()
        groups = (await service.operations.groups(session["id"])).items
        chosen = groups[0].key
        body = {
            "kind": "re-drive",
            "queue": DLQ,
            "reason": "repaired",
            "selection": {"session": session["id"], "filter": f"group:{chosen}"},
        }
        begun = await service.client.post("/admin/dlq/jobs", json=body)
        assert begun.status_code == 202, begun.text
        await service.operations.wait(begun.json()["id"])
        await service.operations.notes.add(DLQ, NewNote(chosen, "repaired in 2.3"))
        found = await service.client.get(f"{_QUEUE}/history", params={"group": chosen})
        other = await service.client.get(f"{_QUEUE}/history", params={"group": groups[1].key})
    done = [(one["action"], one["reason"]) for one in found.json()["items"]]
    assert ("note.add", "") in done
    assert ("job.start", "repaired") in done
    assert other.json()["items"] == []


async def test_remote_notes_equal_library_notes() -> None:
    async with admin(dead_letter(1)) as service:
        transport = service.client._transport
        async with RemoteDeadLetters("http://127.0.0.1", transport=transport) as remote:
            made = await remote.notes.add(DLQ, NewNote("abcd1234", "known"))
            assert await remote.notes.of(DLQ) == (made,)
            saved = await remote.notes.save_filter(DLQ, NewFilter("old ones", "age>2h"))
            assert await remote.notes.filters(DLQ) == (saved,)
            await remote.notes.remove_filter(DLQ, "old ones")
            await remote.notes.remove(DLQ, made.id)
            assert await remote.notes.filters(DLQ) == ()
            assert [one.action for one in await remote.notes.history(DLQ, "abcd1234")] == [
                "note.remove",
                "note.add",
            ]


def _as(name: str, role: str) -> dict[str, str]:
    return _bearer(_token(sub=name, preferred_username=name, roles=[role]))


async def test_viewer_cannot_write_notes_and_operator_deletes_only_own() -> None:
    async with admin(settings=settings()) as service:
        client, said = service.client, {"group": "abcd1234", "text": "known"}
        viewer, ann, ben, boss = (
            _as("vera", "viewer"),
            _as("ann", "operator"),
            _as("ben", "operator"),
            _as("boss", "admin"),
        )
        refused = await client.post(f"{_QUEUE}/notes", json=said, headers=viewer)
        made = await client.post(f"{_QUEUE}/notes", json=said, headers=ann)
        note = made.json()["id"]
        read = await client.get(f"{_QUEUE}/notes", headers=viewer)
        history = await client.get(f"{_QUEUE}/history", headers=viewer)
        others = await client.delete(f"{_QUEUE}/notes/{note}", headers=ben)
        removed = await client.delete(f"{_QUEUE}/notes/{note}", headers=boss)
    answers: list[httpx.Response] = [refused, made, read, history, others, removed]
    assert [one.status_code for one in answers] == [403, 201, 200, 403, 403, 204]


async def test_group_page_address_has_no_session() -> None:
    """Notes are shown on the group and on the queue."""
    async with admin(dead_letter(1)) as service:
        session = await service.session()
        (group,) = (await service.operations.groups(session["id"])).items
        page = f"/queues/{DLQ}/groups/{group.key}"
        await service.client.post(f"{page}/notes", data={"text": "known <b>bug</b>"}, headers=_SAME)
        data = {"name": "old ones", "filter": "age>2h"}
        await service.client.post(f"/queues/{DLQ}/filters", data=data, headers=_SAME)
        shared = await service.client.get(page)
        looking = await service.client.get(f"/sessions/{session['id']}?queue={DLQ}")
        queue = await service.client.get(f"/queues/{DLQ}")
    for answer in (shared, looking, queue):
        assert "known &lt;b&gt;bug&lt;/b&gt;" in answer.text
    assert "old ones" in looking.text
    assert "Look: old ones" in queue.text
