"""Bulk changes as data: they are previewed, the originals are kept, and no code is evaluated."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.errors import BadRequest, NotAllowed
from hopback.message import Message
from hopback.ops.contract.codec import read_patch
from hopback.ops.contract.requests import (
    Pace,
    PatchOperation,
    RedriveRequest,
    Selection,
    Settings,
)
from hopback.ops.contract.values import JobState
from hopback.ops.messages.archive import read_line
from hopback.ops.messages.patch import PatchFailed, apply_patch, change_sample
from hopback.testing import in_virtual_time
from tests.unit.ops.shop import DLQ, MAIN, open_shop, properties, redrive


def _step(op: Any, path: str, value: Any = None) -> PatchOperation:
    return PatchOperation(op, path, value)


@pytest.mark.parametrize(
    ("steps", "after"),
    [
        ([_step("replace", "/a", 2)], {"a": 2, "l": [1, 2]}),
        ([_step("add", "/~1x", 1)], {"a": 1, "l": [1, 2], "/x": 1}),
        ([_step("add", "/l/-", 3), _step("add", "/l/0", 0)], {"a": 1, "l": [0, 1, 2, 3]}),
        ([_step("remove", "/l/0"), _step("remove", "/a")], {"l": [2]}),
        ([_step("test", "/a", 1), _step("replace", "/l/1", "z")], {"a": 1, "l": [1, "z"]}),
        ([_step("replace", "", [])], []),
    ],
)
def test_patch_applies_add_replace_remove_and_test(
    steps: list[PatchOperation], after: object
) -> None:
    assert json.loads(apply_patch(b'{"a": 1, "l": [1, 2]}', steps)) == after


@pytest.mark.parametrize(
    ("body", "step", "why"),
    [
        (b"<xml/>", _step("remove", "/a"), "not JSON"),
        (b'{"a": 1}', _step("remove", "/b"), "no value at /b"),
        (b'{"a": 1}', _step("replace", "/a/b/c", 1), "no value at"),
        (b"[1]", _step("replace", "/7", 1), "no value at /7"),
        (b"[1]", _step("remove", "/-"), "no value at /-"),
        (b'{"a": 1}', _step("test", "/a", 2), "another value"),
        (b'{"a": 1}', _step("test", "/a", True), "another value"),
        (b'"' + b"x" * 1_100_000 + b'"', _step("replace", "", 1), "larger than"),
        (b"[" * 100_000, _step("replace", "", 1), "not JSON"),
        (b"[]", _step("add", "/0", json.loads("[" * 900 + "]" * 900)), "nested too deeply"),
    ],
)
def test_impossible_patch_fails_with_reason(body: bytes, step: PatchOperation, why: str) -> None:
    with pytest.raises(PatchFailed, match=why):
        apply_patch(body, [step])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=10,
    ),
    st.sampled_from(["add", "replace", "remove", "test"]),
    st.text(alphabet="/~01ab-", max_size=8),
)
def test_random_patch_gives_json_or_reason(document: object, op: str, path: str) -> None:
    try:
        made = apply_patch(json.dumps(document).encode(), [_step(op, f"/{path}", 1)])
    except PatchFailed:
        return
    json.loads(made)


def test_truncated_diff_ends_with_notice() -> None:
    whole = change_sample("m", b"[]", [_step("replace", "", list(range(90)))])
    assert whole.diff[-1] == "+]"
    cut = change_sample("m", b"[]", [_step("replace", "", list(range(200)))])
    assert (len(cut.diff), cut.diff[-1]) == (101, "… more lines differ")


@pytest.mark.parametrize("op", ["add", "replace", "test"])
def test_patch_step_without_value_is_refused(op: Any) -> None:
    """`null` is a value."""
    with pytest.raises(ValueError, match="Expected `value` with"):
        PatchOperation(op, "/a")
    with pytest.raises(BadRequest, match=rf"at \[1\], value with {op}"):
        read_patch(json.dumps([{"op": "remove", "path": "/a"}, {"op": op, "path": "/a"}]))
    (step,) = read_patch(json.dumps([{"op": op, "path": "/a", "value": None}]))
    assert step == PatchOperation(op, "/a", None)


def _originals(path: str) -> set[bytes]:
    lines = Path(path).read_bytes().splitlines()
    return {read_line(line, where="it").body for line in lines}


_CHANGE = (
    PatchOperation("replace", "/currency", "EUR"),
    PatchOperation("add", "/was", None),
    PatchOperation("remove", "/was"),
)


@in_virtual_time
async def test_bulk_change_archives_originals(tmp_path: Path) -> None:
    """The dry run shows the diff. Messages that cannot be changed stay."""
    async with open_shop(settings=Settings(exports=tmp_path, editing=True)) as shop:
        bodies = [b'{"currency":"EURO","n":%d}' % number for number in range(20)]
        bodies[7] = b"not JSON"
        await shop.publish(
            Message("", DLQ, body, properties(f"m{number}")) for number, body in enumerate(bodies)
        )
        request = redrive(change=_CHANGE)
        plan = await shop.operations.plan(request)
        assert len(plan.changes) == 5
        assert '-  "currency": "EURO",' in plan.changes[0].diff
        assert '+  "currency": "EUR",' in plan.changes[0].diff
        assert [(one.reason, one.count) for one in plan.left_out] == [("its body is not JSON", 1)]
        job = await shop.operations.wait((await shop.operations.start(request)).id)
        assert (job.counts.done, job.counts.failed) == (19, 1)
        assert {json.loads(body)["currency"] for body in shop.bodies(MAIN)} == {"EUR"}
        assert shop.bodies(DLQ) == [b"not JSON"]
        assert _originals(job.export_to) == set(bodies) - {b"not JSON"}
        record = await shop.operations.journal.job(job.id)
        assert record is not None
        assert isinstance(record.spec.request, RedriveRequest)
        assert record.spec.request.change == _CHANGE


@in_virtual_time
async def test_bulk_change_completes_after_its_publish_connection_is_lost(tmp_path: Path) -> None:
    """It is lost while changed messages are waiting to be published."""
    async with open_shop(settings=Settings(exports=tmp_path, editing=True)) as shop:
        bodies = {b'{"currency":"EURO","n":%d}' % number for number in range(20)}
        await shop.publish(Message("", DLQ, body, properties("m")) for body in bodies)
        job = await shop.operations.start(redrive(change=_CHANGE, pace=Pace(rate=10)))
        await asyncio.sleep(1)  # virtual
        (publishing,) = (
            each for each in shop.broker.connections if each.name == "hopback re-drive"
        )
        shop.broker.cut(publishing)
        async with asyncio.timeout(600):
            done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done, done.run) == (JobState.COMPLETED, 20, 1)
        assert {json.loads(body)["n"] for body in shop.bodies(MAIN)} == set(range(20))
        assert shop.bodies(DLQ) == []
        assert _originals(done.export_to) == bodies


@in_virtual_time
async def test_change_by_library_has_same_step_limit_as_request(tmp_path: Path) -> None:
    async with open_shop(settings=Settings(exports=tmp_path, editing=True)) as shop:
        for ask in (shop.operations.plan, shop.operations.start):
            with pytest.raises(BadRequest, match="change: expected an array of length <= 50"):
                await ask(redrive(change=_CHANGE * 17))


@in_virtual_time
async def test_change_is_refused_unless_enabled(tmp_path: Path) -> None:
    async with open_shop(settings=Settings(exports=tmp_path)) as shop:
        await shop.park(1)
        for ask in (shop.operations.plan, shop.operations.start):
            with pytest.raises(NotAllowed, match="is disabled"):
                await ask(redrive(selection=Selection(), change=_CHANGE))


@in_virtual_time
async def test_retry_of_failed_change_archives_its_originals(tmp_path: Path) -> None:
    async with open_shop("freeflow", settings=Settings(exports=tmp_path, editing=True)) as shop:
        dlq = "freeflow.events.dlq"
        gone, kept = "freeflow.users.queue", "freeflow.audit.queue"
        await shop.publish(
            Message("", dlq, b'{"currency":"EURO"}', properties(name, {"hopback-queue": name}))
            for name in (gone, kept)
        )
        connection = await shop.broker.connect("test")
        channel = await connection.open_channel()
        await channel.delete_queue(gone)
        job = await shop.operations.start(redrive(queue=dlq, change=_CHANGE))
        done = await shop.operations.wait(job.id)
        assert (done.state, done.counts.done, done.counts.failed) == (JobState.COMPLETED, 1, 1)
        queue = shop.topology.queue(gone)
        assert queue is not None
        await channel.declare_queue(queue)
        again = await shop.operations.retry_failures(job.id)
        ended = await shop.operations.wait(again.id)
        assert (ended.state, ended.state_reason, ended.counts.done) == (JobState.COMPLETED, "", 1)
        assert _originals(ended.export_to) == {b'{"currency":"EURO"}'}
        assert ended.export_to != done.export_to
