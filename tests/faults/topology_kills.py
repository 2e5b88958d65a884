"""Topology commands while other clients hold messages, and while the broker is killed at a given
moment.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tests.faults.stand import Holder

if TYPE_CHECKING:
    from tests.faults.stand import Stand

__all__ = [
    "held_by_a_page",
    "killed_lifting",
    "killed_migrating",
    "killed_replacing",
    "killed_reverting",
    "said",
]

MIGRATE = ("topology", "migrate", "raffle", "--hardened", "--yes")
REPLACE = (
    *("topology", "apply", "raffle", "--hardened", "--yes", "--skip-conflicts"),
    *("--replace", "raffle_dlq"),
)
_ON_DISK_S = 2.0
"""On 3.10, a quorum queue declared within this time before a kill -9 may return without a leader."""

_SAYS_S = 120.0
"""How long a command may take to print the expected output."""


def said(stand: Stand) -> str:
    """The output of all commands of this stand so far."""
    path = stand.folder / "said"
    return path.read_text(errors="replace") if path.exists() else ""


async def _killed_when(stand: Stand, text: str, *command: str, after_s: float = _ON_DISK_S) -> None:
    """Start a command, kill the broker some time after this output, and restart it."""
    before = len(said(stand))
    child = stand.start(*command)
    deadline = time.monotonic() + _SAYS_S
    while text not in said(stand)[before:] and child.poll() is None:
        if time.monotonic() > deadline:
            raise AssertionError(
                f"expected {text!r} within {_SAYS_S:g} s, got {said(stand)[before:]}"
            )
        await asyncio.sleep(0.02)
    await asyncio.sleep(after_s)
    if child.poll() is not None:
        raise AssertionError(f"expected a command at work, it has ended: {said(stand)[before:]}")
    await asyncio.to_thread(stand.node.kill)
    if await stand.ended(child, 60.0) is None:
        stand.problems.append(f"`{' '.join(command)}` does not end when its broker is gone")
        stand.kill(child, "a command that hung")
    await asyncio.to_thread(stand.node.start)


async def held_by_a_page(stand: Stand) -> int | None:
    """`migrate` within a tick after a page took messages.

    Return its exit code while the page is open.
    """
    await stand.until_done("topology", "apply", "raffle", "--yes")
    await stand.put("raffle_dlq", 300)
    served = await stand.serve("--topology", "raffle")
    await served.call("POST", "/admin/dlq/queues/raffle_dlq/sessions", {"limit": 100})
    code = await stand.run(*MIGRATE)
    stand.kill(served.child, "`hopback serve`")
    await stand.until_done(*MIGRATE)
    return code


async def killed_migrating(stand: Stand) -> None:
    """The broker dies while messages move out, while the queues are watched, and while they move back."""
    await stand.until_done("topology", "apply", "raffle", "--yes")
    await stand.put("raffle_queue", 3000)
    await stand.put("raffle_dlq", 500)
    await _killed_when(stand, "raffle_dlq: new messages go to raffle_dlq.migrating", *MIGRATE)
    await _killed_when(
        stand, "raffle_queue: new messages go to raffle_queue.migrating", *MIGRATE, after_s=8.0
    )
    await _killed_when(stand, "raffle_queue: ", *MIGRATE, after_s=25.0)
    await stand.until_done(*MIGRATE)


async def killed_replacing(stand: Stand) -> None:
    """The broker dies while the empty queue is watched, and when it has just been made anew."""
    await stand.until_done("topology", "apply", "raffle", "--yes")
    await stand.put("raffle_queue", 300)
    text = "raffle_dlq: new messages go to raffle_dlq.migrating"
    await _killed_when(stand, text, *REPLACE, after_s=5.0)
    await stand.put("raffle_dlq.migrating", 20)  # dead letters of another application, meanwhile
    await _killed_when(stand, "the old queue is gone", *REPLACE)
    await stand.until_done(*MIGRATE)


async def killed_lifting(stand: Stand) -> None:
    """The broker dies while a look lifts the limit of a foreign queue, again and again."""
    await stand.declare("old.errors", {"x-queue-type": "quorum"})
    await stand.put("old.errors", 100)
    peek = ("dlq", "peek", "old.errors", "--lift-limit", "--limit", "100", "--dlq", "old.errors")
    for seconds in (0.8, 1.6):
        child = stand.start(*peek)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(stand.node.kill)
        await stand.ended(child, 60.0)
        await asyncio.to_thread(stand.node.start)
    await stand.until_done(*peek)


async def killed_reverting(stand: Stand) -> tuple[int | None, int | None]:
    """The broker dies while it is found out whether a limit may be restored.

    The exit codes of a revert while messages were looked at too often, and after they were counted
    anew.
    """
    await killed_lifting(stand)
    await stand.look("old.errors", 25)
    revert = ("topology", "revert", "--queue", "old.errors", "--yes")
    child = stand.start(*revert)
    await asyncio.sleep(6)
    await asyncio.to_thread(stand.node.kill)
    await stand.ended(child, 60.0)
    await asyncio.to_thread(stand.node.start)
    refused = await stand.run(*revert)
    holder = Holder(stand.url, "old.errors", 500)
    await asyncio.to_thread(holder.take)
    await asyncio.to_thread(holder.let_go)
    known = ("--dlq", "old.errors", "--to", "queue:repaired", "--yes")
    await stand.declare("repaired", {"x-queue-type": "quorum"})
    await stand.until_done("dlq", "redrive", "old.errors", *known)
    return refused, await stand.run(*revert)
