"""One request that takes much time or memory does not stop the others, and leaves a trace in the audit."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from hopback.errors import BadLine
from hopback.ops.http.archives import lines_in
from hopback.ops.http.settings import parse_settings
from tests.unit.ops.admin_service import DLQ, MAIN, SECRET, admin, dead_letter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.unit.ops.admin_service import Admin

_IMPORT = f"/admin/dlq/queues/{DLQ}/import"
_SAME = {"Sec-Fetch-Site": "same-origin"}


def _hostile_body(first: int) -> bytes:
    """60 kB of values that repeat every 150 lines, which difflib compares with each other for seconds."""
    return json.dumps([first, *(n % 150 for n in range(14_000))]).encode()


async def test_dry_run_with_change_does_not_block_event_loop(tmp_path: Path) -> None:
    """The diffs of such bodies took seconds each.

    The fixture of this folder fails the test if it blocks.
    """
    change = [{"op": "replace", "path": f"/{n * 270}", "value": 7777} for n in range(50)]
    dead_letters = [dead_letter(n, body=_hostile_body(n)) for n in range(5)]
    async with admin(*dead_letters, editing=True, exports=tmp_path) as service:
        order = {
            "kind": "re-drive",
            "queue": DLQ,
            "reason": "x",
            "change": change[:50],
            "dryRun": True,
        }
        answer = await service.client.post("/admin/dlq/jobs", json=order)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["changes"]) == 5


async def _pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_long_line_is_joined_without_quadratic_copies() -> None:
    """A line of 30 MB in chunks of 64 kB took minutes when each chunk copied it."""
    pieces = [b"x" * 65_536 for _ in range(450)]
    lines = [line async for line in lines_in(_pieces(b"a\nb", *pieces, b"\n\nc"))]
    assert [len(line) for line in lines] == [1, 1 + 450 * 65_536, 0, 1]


async def test_line_longer_than_any_message_ends_import() -> None:
    pieces = [b"x" * (1 << 20) for _ in range(33)]
    with pytest.raises(BadLine, match=r"at most 33,554,432 bytes"):
        async for _ in lines_in(_pieces(*pieces)):
            pass


async def _export(service: Admin) -> bytes:
    return (await service.client.post(f"/admin/dlq/queues/{DLQ}/export")).content


async def _audit(service: Admin) -> list[tuple[str, Any]]:
    entries = await service.operations.audit()
    found = [one for one in entries if one.action == "messages.import"]
    return [(one.result, one.details["published"]) for one in found]


async def test_import_is_audited_before_its_first_message() -> None:
    async with admin(*(dead_letter(n) for n in range(5))) as service:
        lines = await _export(service)
        seen: list[list[tuple[str, Any]]] = []

        async def upload() -> AsyncIterator[bytes]:
            yield lines.splitlines(keepends=True)[0]
            seen.append(await _audit(service))

        answer = await service.client.post(_IMPORT, content=upload())
        assert answer.json()["published"] == 1
        assert seen == [[("started", 0)]]
        assert await _audit(service) == [("ok", 1), ("started", 0)]


@pytest.mark.parametrize(
    "last",
    [b"no message\n", b'{"hopback":1,"queue":"q","exchange":"","routingKey":"","body":"\\ud800"}'],
)
async def test_import_that_fails_halfway_is_audited_with_its_count(last: bytes) -> None:
    """Broken JSON, or a lone surrogate in the last line."""
    async with admin(*(dead_letter(n) for n in range(5))) as service:
        answer = await service.client.post(_IMPORT, content=await _export(service) + last)
        assert (answer.status_code, answer.json()["published"]) == (200, 5)
        assert "line 6" in answer.json()["problem"]
        assert await _audit(service) == [("failed", 5), ("started", 0)]


async def test_interrupted_upload_is_audited_with_its_count() -> None:
    async with admin(*(dead_letter(n) for n in range(5))) as service:
        lines = await _export(service)

        async def upload() -> AsyncIterator[bytes]:
            yield lines
            raise ConnectionResetError("cable cut")

        answer = await service.client.post(_IMPORT, content=upload())
        assert (answer.json()["published"], answer.json()["problem"]) == (5, "cable cut")
        assert await _audit(service) == [("failed", 5), ("started", 0)]


async def test_heavy_requests_are_limited_per_caller_and_in_total() -> None:
    """While an import waits for its upload, a heavy request is refused and a light one is answered."""
    limits = {"heavy_requests": 3, "heavy_requests_per_caller": 1}
    settings = parse_settings({"limits": limits}, {}, "test")
    async with admin(dead_letter(1), settings=settings) as service:
        begun, release = asyncio.Event(), asyncio.Event()

        async def upload() -> AsyncIterator[bytes]:
            begun.set()
            yield b"\n"
            await release.wait()

        first = asyncio.create_task(service.client.post(_IMPORT, content=upload()))
        await begun.wait()
        refused = await service.client.post(f"/admin/dlq/queues/{DLQ}/export")
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-heavy-requests")
        page = await service.client.post(f"/queues/{DLQ}/export", headers=_SAME)
        assert page.status_code == 429
        assert (await service.client.get(f"/admin/dlq/queues/{DLQ}")).status_code == 200
        release.set()
        assert (await first).status_code == 200
        again = await service.client.post(f"/admin/dlq/queues/{DLQ}/export")
        assert (again.status_code, len(again.text.splitlines())) == (200, 1)
        assert service.broker.snapshot().queue(MAIN).ready == ()


async def test_heavy_requests_of_one_caller_do_not_delay_others() -> None:
    grants = [{"claim": "all", "role": "admin", "queues": ["*"]}]
    jwt_settings = {"issuer": "https://id.test", "audience": "hopback", "secret_env": "JWT_SECRET"}
    limits = {"heavy_requests": 4, "heavy_requests_per_caller": 2}
    auth = {"jwt": jwt_settings, "grants": grants}
    chosen = parse_settings({"auth": auth, "limits": limits}, {"JWT_SECRET": SECRET}, "test")
    async with admin(dead_letter(1), dead_letter(2), settings=chosen) as service:
        begun, release = asyncio.Semaphore(0), asyncio.Event()

        async def upload() -> AsyncIterator[bytes]:
            begun.release()
            yield b"\n"
            await release.wait()

        async def ask(who: str, path: str, **more: Any) -> int:
            claims = {"iss": "https://id.test", "aud": "hopback", "sub": who, "exp": 9e9}
            claims |= {"roles": ["all"]}
            token = jwt.encode(claims, SECRET, algorithm="HS256")
            sent = {"Authorization": f"Bearer {token}"}
            return (await service.client.post(path, headers=sent, **more)).status_code

        first = [asyncio.create_task(ask("greedy", _IMPORT, content=upload())) for _ in range(2)]
        for _ in first:
            await begun.acquire()
        export = f"/admin/dlq/queues/{DLQ}/export"
        async with asyncio.timeout(20):
            assert [await ask("greedy", export) for _ in range(5)] == [429] * 5
            assert [await ask("bystander", export) for _ in range(5)] == [200] * 5
        release.set()
        assert await asyncio.gather(*first) == [200, 200]
        assert len(service.broker.snapshot().queue(DLQ).ready) == 2
