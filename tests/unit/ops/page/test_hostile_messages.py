"""Dead letters of random bytes: every response is valid, and the messages stay unchanged."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hopback.message import Message
from hopback.ops.contract.requests import GroupBy
from hopback.testing import in_virtual_time
from tests.harness.hostile_bytes import hostile_properties, hostile_text, own_part
from tests.unit.ops.admin_service import DLQ, MAIN, Admin, admin, dead_letter

if TYPE_CHECKING:
    from collections import Counter

_NUMBER = 25
_SAME = {"Sec-Fetch-Site": "same-origin"}


def _dead_letters(seed: int) -> list[Message]:
    """Half of the messages failed in a Hopback consumer and carry its headers."""
    chance = random.Random(seed)
    made = []
    for number in range(_NUMBER):
        properties = hostile_properties(chance)
        if number % 2:
            marks = dead_letter(number).properties.headers
            headers = {**properties.headers, **marks}
            properties = replace(properties, headers=headers)
        made.append(Message("", DLQ, b"%d" % number, properties))
    return made


async def _die_in_the_queue(service: Admin, seed: int) -> None:
    """Publish by routing keys of any bytes and reject: the broker writes them down as they are."""
    chance = random.Random(seed)
    channel = await (await service.broker.connect("producer")).open_channel()
    for number in range(5):
        key = "order." + hostile_text(chance, 200).decode("utf-8", "surrogateescape")
        properties = hostile_properties(chance)
        await channel.publish(Message("shop.events", key, b"k%d" % number, properties))
        taken = await channel.get(MAIN)
        assert taken is not None
        channel.nack(taken.tag, requeue=False)


async def _good(service: Admin, method: str, path: str, **options: Any) -> Any:
    answer = await service.client.request(method, path, headers=_SAME, **options)
    assert answer.status_code < 400, (method, path, answer.status_code, answer.text[:500])
    return answer


def _parts(service: Admin, queue: str) -> dict[bytes, tuple[bytes, Counter[bytes]]]:
    return {
        message.body: own_part(message.properties)
        for message in service.broker.snapshot().queue(queue).ready
    }


@in_virtual_time
async def test_random_dead_letters_are_shown_searched_and_grouped() -> None:
    async with admin(*_dead_letters(1), editing=True) as service:
        await _die_in_the_queue(service, 1)
        session = await service.session()
        url, page = session["url"], f"/sessions/{session['id']}"
        items = (await _good(service, "GET", f"{url}/messages?limit=100")).json()["items"]
        assert len(items) == _NUMBER + 5
        for by in (*GroupBy, "header.id", "header.traceparent", "payload.a"):
            for path in (f"{url}/groups", page):
                await _good(service, "GET", path, params={"by": by})
        terms = [f"{name}:*" for name in ("reason", "origin", "type", "error", "id", "key", "job")]
        for text in (*terms, "header.id:*", "payload.a:*", "plain", "\u00fc", '"\\ufffd"'):
            for path in (f"{url}/messages", page):
                await _good(service, "GET", path, params={"filter": text})
        for item in items:
            one = f"messages/{item['id']}"
            found = (await _good(service, "GET", f"{url}/{one}")).json()
            json.dumps(found).encode()
            await _good(service, "GET", f"{url}/{one}/body")
            for form in ("", "?form=raw", "?form=hex", "/edit"):
                await _good(service, "GET", f"{page}/{one}{form}")
        await _good(service, "GET", "/admin/dlq/overview")
        await _good(service, "POST", "/errors/survey")
        for path in ("/", "/search?find=order", "/search?find=%FF", f"/queues/{DLQ}"):
            await _good(service, "GET", path)


@in_virtual_time
async def test_random_dead_letters_are_edited_without_other_changes() -> None:
    async with admin(*_dead_letters(2), editing=True) as service:
        before = _parts(service, DLQ)
        session = await service.session()
        url = session["url"]
        items = (await _good(service, "GET", f"{url}/messages?limit=100")).json()["items"]
        for item in items:
            edit = {"edit": {"headers": {"added": "x"}}, "reason": "test"}
            await _good(service, "POST", f"{url}/messages/{item['id']}/edit", json=edit)
        ready = service.broker.snapshot().queue(MAIN).ready
        assert len(ready) == _NUMBER
        for message in ready:
            _, headers = own_part(message.properties)
            expected = before[message.body][1]
            assert not expected - headers
            assert len(headers - expected) == 2


@in_virtual_time
async def test_random_dead_letters_are_unchanged_after_export_and_import() -> None:
    async with admin(*_dead_letters(3)) as service:
        await _die_in_the_queue(service, 3)
        before = _parts(service, DLQ)
        exported = await _good(service, "POST", f"/admin/dlq/queues/{DLQ}/export")
        channel = await (await service.broker.connect("test")).open_channel()
        await channel.purge_queue(DLQ)
        answer = await _good(
            service, "POST", f"/admin/dlq/queues/{DLQ}/import?reason=test", content=exported.content
        )
        assert answer.json()["published"] == len(before) == _NUMBER + 5
        assert _parts(service, DLQ) == before


@in_virtual_time
async def test_random_dead_letters_are_redriven_unchanged() -> None:
    async with admin(*_dead_letters(4)) as service:
        await _die_in_the_queue(service, 4)
        before = _parts(service, DLQ)
        order = {"kind": "re-drive", "queue": DLQ, "reason": "test", "maxRedrives": 0}
        dry = await _good(service, "POST", "/admin/dlq/jobs", json={**order, "dryRun": True})
        started = (await _good(service, "POST", "/admin/dlq/jobs", json=order)).json()
        await service.operations.wait(started["id"])
        job = (await _good(service, "GET", started["url"])).json()
        after = _parts(service, MAIN)
        assert (job["state"], dry.status_code) == ("completed", 200)
        assert job["counts"]["done"] == len(after), job
        assert after == {body: part for body, part in before.items() if body in after}
        assert {*after, *_parts(service, DLQ)} == before.keys()
        await _good(service, "GET", f"/jobs/{started['id']}")
        await _good(service, "GET", "/admin/audit")
