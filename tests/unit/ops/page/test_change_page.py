"""A re-drive that changes its messages, on the page: the field, its errors, the review, the originals."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING

import pytest

from hopback.ops.contract.roles import Grant, Role
from hopback.ops.http.keys import new_key
from hopback.ops.messages.archive import read_line
from tests.unit.ops.admin_service import DLQ, MAIN, NOW, Admin, admin, dead_letter, settings

if TYPE_CHECKING:
    from pathlib import Path

    from hopback.ops.http import AdminSettings

_ACT = f"/queues/{DLQ}/re-drive"
_PATCH = '[{"op": "replace", "path": "/currency", "value": "EUR"}]'
_SECOND = {"step": "2", "on": "1"}
_FIELD = "Change each message (JSON patch)"


def _review(change: str, **more: str) -> dict[str, str]:
    """The second step as it is sent, with this change."""
    return {"on": "2", "step": "3", "reason": "wrong currency", "change": change, **more}


def _hidden(page: str) -> dict[str, str]:
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page)
    return {name: html.unescape(value) for name, value in found}


def _bodies(service: Admin, queue: str) -> list[bytes]:
    return [bytes(one.body) for one in service.broker.snapshot().queue(queue).ready]


def _originals(exports: Path) -> set[bytes]:
    (file,) = exports.iterdir()
    return {read_line(line, where="it").body for line in file.read_bytes().splitlines()}


async def test_page_applies_patch_to_many_messages(tmp_path: Path) -> None:
    """The review shows the diffs and the archive of the originals.

    The button counts the messages that can be changed.
    """
    bodies = [b'{"currency":"EURO","n":%d}' % number for number in range(7)]
    bodies[1] = b"not JSON"
    dead_letters = [dead_letter(number, body=body) for number, body in enumerate(bodies)]
    async with admin(*dead_letters, editing=True, exports=tmp_path) as service:
        assert _FIELD in (await service.client.post(_ACT, data=_SECOND)).text
        review = (await service.client.post(_ACT, data=_review(_PATCH))).text
        assert review.count('<pre class="diff"') == 4
        assert "<del>-   &#34;currency&#34;: &#34;EURO&#34;,</del>" in review
        assert "<ins>+   &#34;currency&#34;: &#34;EUR&#34;,</ins>" in review
        assert "--- before" not in review
        assert "@@" not in review
        assert "Stays in the queue: its body is not JSON." in review
        assert f"{tmp_path}/JOB.originals.ndjson" in review
        assert "Re-drive 6 messages" in review
        again = await service.client.post(_ACT, data=_hidden(review) | {"step": "2"})
        assert html.escape(_PATCH, quote=True).replace("&quot;", "&#34;") in again.text
        began = await service.client.post(_ACT, data=_hidden(review) | {"step": "go"})
        job = await service.operations.wait(began.headers["location"].rpartition("/")[2])
        shown = await service.client.get(began.headers["location"])
        assert (job.counts.done, "<dt>Originals</dt>" in shown.text) == (6, True)
        assert {json.loads(body)["currency"] for body in _bodies(service, MAIN)} == {"EUR"}
        assert _bodies(service, DLQ) == [b"not JSON"]
    assert _originals(tmp_path) == {*bodies} - {b"not JSON"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("[", "a JSON patch: input data was truncated"),
        ("{}", "an array, got object"),
        ("[]", "at least one step"),
        ('[{"op": "move", "path": "/a"}]', "at [0].op, one of "),
        ('[{"op": "replace", "path": "/a"}]', "at [0], value with replace"),
        ('[{"op": "add"}]', "at [0].path, a value, got none"),
        ('[{"op": "remove", "path": "a"}]', "at [0].path"),
        (json.dumps([{"op": "remove", "path": "/a"}] * 51), "length &lt;= 50"),
        ("[" * 60_000, "it is nested too deeply"),
        ("</textarea><script>alert(1)</script>", "JSON is malformed"),
    ],
    ids=[
        "cut",
        "object",
        "empty",
        "verb",
        "no value",
        "no path",
        "pointer",
        "long",
        "deep",
        "tags",
    ],
)
async def test_invalid_patch_is_reported_at_its_field(
    tmp_path: Path, change: str, words: str
) -> None:
    """The form keeps all values."""
    said = {"rate": "7", "watchSeconds": "3", "target": "queue", "target_queue": "elsewhere"}
    async with admin(dead_letter(1), editing=True, exports=tmp_path) as service:
        for step in ("3", "go"):
            answer = await service.client.post(_ACT, data=_review(change, **said, step=step))
            assert answer.status_code == 200
            (trouble,) = re.findall(r'<p class="trouble" id="bad-change".*?</p>', answer.text)
            assert words in trouble
            assert 'aria-invalid="true"' in answer.text
            assert '<details class="change" open>' in answer.text
            (kept,) = re.findall(
                r'<textarea id="change".*?>\n(.*?)</textarea>', answer.text, re.DOTALL
            )
            assert html.unescape(kept) == change
            for value in ("7", "3", "elsewhere", "wrong currency"):
                assert f'value="{value}"' in answer.text
        assert await service.operations.jobs() == ()


async def test_patch_is_refused_without_export_folder() -> None:
    async with admin(dead_letter(1), editing=True) as service:
        answer = await service.client.post(_ACT, data=_review(_PATCH))
        (trouble,) = re.findall(r'<p class="trouble" id="bad-change".*?</p>', answer.text)
        assert "folder of exports" in trouble


async def test_hostile_body_is_escaped_in_review(tmp_path: Path) -> None:
    evil = (
        "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\u202egnp.exe\x9b2J\u2028@@ x"
    )
    body = json.dumps({"currency": "EURO", "note": evil}, ensure_ascii=False).encode()
    patch = json.dumps([{"op": "replace", "path": "/currency", "value": evil}])
    async with admin(dead_letter(1, body=body), editing=True, exports=tmp_path) as service:
        review = (await service.client.post(_ACT, data=_review(patch))).text
    (shown,) = re.findall(r'<pre class="diff".*?</pre>', review, re.DOTALL)
    assert "onerror=alert(2)" in shown
    assert set(re.findall(r"<(\w+)", shown)) == {"pre", "del", "ins", "span"}
    assert not re.search("[\x7f-\x9f\u2028\u202a-\u202e]", shown)
    assert review.count("<img") == review.count('<img src="/static/mark.svg"')


async def test_patch_without_effect_is_reported(tmp_path: Path) -> None:
    test = '[{"op": "test", "path": "/order/id", "value": 1}]'
    async with admin(dead_letter(1), editing=True, exports=tmp_path) as service:
        review = (await service.client.post(_ACT, data=_review(test))).text
    assert "No changes." in review


def _operator() -> tuple[AdminSettings, dict[str, str]]:
    """Settings with a key for an operator, and its header."""
    secret, key = new_key("team", Grant(Role.OPERATOR, ("*",)), expires=None, made_by="", now=NOW)
    kept = {"name": key.name, "hash": key.hash, "role": "operator", "queues": ["*"]}
    return settings(keys=[kept]), {"Authorization": f"Bearer {secret}"}


async def test_patch_field_is_hidden_without_permission(tmp_path: Path) -> None:
    """A request that sends it anyway is refused."""
    async with admin(dead_letter(1), exports=tmp_path) as service:
        assert _FIELD not in (await service.client.post(_ACT, data=_SECOND)).text
        for step in ("3", "go"):
            answer = await service.client.post(_ACT, data=_review(_PATCH, step=step))
            assert (answer.status_code, "is disabled" in answer.text) == (403, True)
    rules, team = _operator()
    async with admin(dead_letter(1), editing=True, exports=tmp_path, settings=rules) as service:
        second = await service.client.post(_ACT, data=_SECOND, headers=team)
        assert ("Ramp: " in second.text, _FIELD in second.text) == (True, False)
        for step in ("1", "2", "3", "go"):
            form = _review(_PATCH, step=step)
            answer = await service.client.post(_ACT, data=form, headers=team)
            assert (answer.status_code, "role admin" in answer.text) == (403, True)
        assert _bodies(service, MAIN) == []
