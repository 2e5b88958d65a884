"""Run topology commands while other clients hold messages, and while the broker is killed at a
certain time.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tests.faults.stand import Holder

if TYPE_CHECKING:
    from tests.faults.stand import Stand

__all__ = [
    "kill_during_lift",
    "kill_during_migrate",
    "kill_during_replace",
    "kill_during_revert",
    "migrate_beside_page",
    "said",
]

MIGRATE = ("topology", "migrate", "raffle", "--hardened", "--yes")
REPLACE = (
    *("topology", "apply", "raffle", "--hardened", "--yes", "--skip-conflicts"),
    *("--replace", "raffle_dlq"),
)
_ON_DISK_S = 2.0
"""Seconds. If the broker is killed within this time after a quorum queue was declared, the queue
may have no leader on 3.10.
"""

_SAYS_S = 120.0
"""Seconds to wait for the expected output of a command."""


def said(stand: Stand) -> str:
    """Return the output of all commands so far."""
    path = stand.folder / "said"
    return path.read_text(errors="replace") if path.exists() else ""


async def _kill_broker_at(
    stand: Stand, text: str, *command: str, after_s: float = _ON_DISK_S
) -> None:
    """Start a command. Kill the broker some time after the expected output and restart it."""
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
    if await stand.wait_ended(child, 60.0) is None:
        stand.problems.append(f"`{' '.join(command)}` does not end when its broker is gone")
        stand.kill(child, "a command that hung")
    await asyncio.to_thread(stand.node.start)


async def migrate_beside_page(stand: Stand) -> int | None:
    """Run `migrate` directly after a page has taken messages. Returns the exit code of the attempt
    during which the page is open.
    """
    await stand.until_done("topology", "apply", "raffle", "--yes")
    await stand.put("raffle_dlq", 300)
    served = await stand.serve("--topology", "raffle")
    await served.call("POST", "/admin/dlq/queues/raffle_dlq/sessions", {"limit": 100})
    code = await stand.run(*MIGRATE)
    stand.kill(served.child, "`hopback serve`")
    await stand.until_done(*MIGRATE)
    return code


async def kill_during_migrate(stand: Stand) -> None:
    """Kill the broker while messages are moved out, while the queues are being watched, and while
    messages are moved back.
    """
    await stand.until_done("topology", "apply", "raffle", "--yes")
    await stand.put("raffle_queue", 3000)
    await stand.put("raffle_dlq", 500)
    await _kill_broker_at(stand, "raffle_dlq: new messages go to raffle_dlq.migrating", *MIGRATE)
    await _kill_broker_at(
        stand, "raffle_queue: new messages go to raffle_queue.migrating", *MIGRATE, after_s=8.0
    )
    await _kill_broker_at(stand, "raffle_queue: ", *MIGRATE, after_s=25.0)
    await stand.until_done(*MIGRATE)


async def kill_during_replace(stand: Stand) -> None:
    """Kill the broker while the empty queue is being watched, and when it has just been created
    again.
    """
    await stand.until_done("topology", "apply", "raffle", "--yes")
    await stand.put("raffle_queue", 300)
    text = "raffle_dlq: new messages go to raffle_dlq.migrating"
    await _kill_broker_at(stand, text, *REPLACE, after_s=5.0)
    # another application publishes dead letters meanwhile
    await stand.put("raffle_dlq.migrating", 20)
    await _kill_broker_at(stand, "the old queue is gone", *REPLACE)
    await stand.until_done(*MIGRATE)


async def kill_during_lift(stand: Stand) -> None:
    """Kill the broker while a command lifts the limit of a queue of another application."""
    await stand.declare("old.errors", {"x-queue-type": "quorum"})
    await stand.put("old.errors", 100)
    await asyncio.sleep(5)  # a quorum queue that is killed earlier may have no leader afterwards
    peek = ("dlq", "peek", "old.errors", "--lift-limit", "--limit", "100", "--dlq", "old.errors")
    for seconds in (0.8, 1.6):
        child = stand.start(*peek)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(stand.node.kill)
        await stand.wait_ended(child, 60.0)
        await asyncio.to_thread(stand.node.start)
    await stand.until_done(*peek)


async def kill_during_revert(stand: Stand) -> tuple[int | None, int | None]:
    """Kill the broker while a command checks if a limit can be restored.

    Returns two exit codes of revert. At the first one, messages have been delivered too often.
    Before the second one, they are moved, which resets their delivery counts.
    """
    await kill_during_lift(stand)
    await stand.look("old.errors", 25)
    revert = ("topology", "revert", "--queue", "old.errors", "--yes")
    child = stand.start(*revert)
    await asyncio.sleep(6)
    await asyncio.to_thread(stand.node.kill)
    await stand.wait_ended(child, 60.0)
    await asyncio.to_thread(stand.node.start)
    refused = await stand.run(*revert)
    holder = Holder(stand.url, "old.errors", 500)
    await asyncio.to_thread(holder.take)
    await asyncio.to_thread(holder.let_go)
    known = ("--dlq", "old.errors", "--to", "queue:repaired", "--yes", "--reason", "test")
    await stand.declare("repaired", {"x-queue-type": "quorum"})
    await stand.until_done("dlq", "redrive", "old.errors", *known)
    return refused, await stand.run(*revert)
