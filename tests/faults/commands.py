"""Blocks of commands. Operators run commands while other clients hold messages and processes are
killed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from tests.faults.ledger.checks import Promise
from tests.faults.site import version_of
from tests.faults.stand import Holder, stand_on
from tests.faults.tally import Part

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.site import Site
    from tests.faults.stand import Served, Stand
    from tests.harness.rabbitmq import RabbitNode

__all__ = ["jobs", "topologies"]

_MIGRATE = ("topology", "migrate", "raffle", "--hardened", "--yes")
_REPLACE = ("topology", "apply", "raffle", "--hardened", "--yes", "--replace")
_KNOWN = ("--topology", "recommended")
_REFUSED_S = 40.0
"""How long messages are held, in seconds. This is longer than a command checks a queue before it
deletes it.
"""
_ON_DISK_S = 5.0
"""Seconds without a declaration before the broker is killed."""


async def _migrate_beside_page(stand: Stand) -> None:
    """Run `migrate` while the page of an operator holds messages. It waits or fails, and succeeds
    afterwards.
    """
    await stand.until_done("topology", "apply", "raffle", "--yes")
    await stand.put("raffle_dlq", 300)
    served = await stand.serve("--topology", "raffle")
    await served.call("POST", "/admin/dlq/queues/raffle_dlq/sessions", {"limit": 100})
    migrating = stand.start(*_MIGRATE)
    await stand.wait_ended(migrating, _REFUSED_S)
    stand.kill(served.child, "`hopback serve`")
    await stand.wait_ended(migrating)
    await stand.until_done(*_MIGRATE)


async def _migrate_in_grace_time(stand: Stand) -> None:
    """Run `migrate` while a consumer that is stopping still handles messages."""
    await stand.until_done("topology", "apply", "raffle", "--yes")
    await stand.put("raffle_queue", 100)
    holder = Holder(stand.url, "raffle_queue", 15)
    await asyncio.to_thread(holder.take)
    migrating = stand.start(*_MIGRATE)
    await stand.wait_ended(migrating, _REFUSED_S)
    await asyncio.to_thread(holder.let_go)
    await stand.wait_ended(migrating)
    await stand.until_done(*_MIGRATE)


async def _migrate_with_held_back(stand: Stand) -> None:
    """Run `migrate` for a retry queue whose messages the broker holds back because their main queue
    is missing.
    """
    await stand.until_done("topology", "apply", "raffle", "--hardened", "--yes")
    await stand.delete("raffle_queue")
    await stand.put("raffle_retry_10s", 60)
    await asyncio.sleep(14)  # they have expired and cannot be routed
    shorter = (
        "topology",
        "migrate",
        "raffle",
        "--hardened",
        "--param",
        "retry_ttl_ms=5000",
        "--yes",
    )
    await stand.run(*shorter, seconds=_REFUSED_S)
    # Only the main queue has to be created. The retry queue can stay as it is.
    await stand.until_done("topology", "apply", "raffle", "--hardened", "--yes", "--skip-conflicts")


async def _replace_beside_page(stand: Stand) -> None:
    """Run `apply --replace` right after a page has taken all messages. The statistics of the broker
    are outdated at this moment.
    """
    await stand.until_done("topology", "apply", "raffle", "--yes")
    await stand.put("raffle_dlq", 50)
    served = await stand.serve("--topology", "raffle")
    await served.call("POST", "/admin/dlq/queues/raffle_dlq/sessions", {"limit": 100})
    await stand.run(*_REPLACE, "raffle_dlq", seconds=_REFUSED_S)
    stand.kill(served.child, "`hopback serve`")


async def _replace_empty_queue(stand: Stand) -> None:
    """Replace empty queues while others contain messages."""
    await stand.until_done("topology", "apply", "raffle", "--yes")
    await stand.put("raffle_queue", 300)
    await stand.run(*_REPLACE, "raffle_retry_10s", "--skip-conflicts")
    await stand.run(*_REPLACE, "raffle_dlq", "--skip-conflicts")


async def _revert_after_many_looks(stand: Stand) -> None:
    """Restore a lifted delivery limit. This is refused while messages have been delivered more
    often than the limit allows.
    """
    await stand.declare("old.errors", {"x-queue-type": "quorum"})
    await stand.put("old.errors", 100)
    known = ("--dlq", "old.errors")
    await stand.run("dlq", "peek", "old.errors", "--lift-limit", "--limit", "100", *known)
    lifted = await asyncio.to_thread(stand.node.management.call, "GET", f"/policies/{stand.vhost}")
    # RabbitMQ 3.10 has no limit to lift. If none was lifted, browsing itself would lose messages.
    await stand.look("old.errors", 25 if lifted else 1)
    await stand.run("topology", "revert", "--queue", "old.errors", "--yes")
    await stand.look("old.errors", 1)


async def _kill_migrate(stand: Stand) -> None:
    """Migrate all queues. The command is killed twice and started again."""
    await stand.until_done("topology", "apply", "raffle", "--yes")
    await stand.put("raffle_queue", 1500)
    await stand.put("raffle_dlq", 500)
    for seconds in (2.0, 12.0):
        migrating = stand.start(*_MIGRATE)
        await stand.wait_ended(migrating, seconds)
        stand.kill(migrating, "`hopback topology migrate`")
    await stand.until_done(*_MIGRATE)


_TOPOLOGY = (
    _migrate_beside_page,
    _migrate_in_grace_time,
    _migrate_with_held_back,
    _replace_beside_page,
    _replace_empty_queue,
    _revert_after_many_looks,
    _kill_migrate,
)


async def topologies(site: Site) -> Part:
    """Run all topology commands that could lose messages, first without faults and then while the
    broker is killed repeatedly.
    """
    return await _play_cases(site, "topology commands", _TOPOLOGY, kills=4)


async def _redrive_by_server(stand: Stand) -> None:
    """Run a job in `hopback serve`, which is killed during the job. The next process resumes the
    job.
    """
    await stand.until_done("topology", "apply", "recommended", "--yes")
    await stand.put("orders.dlq", 2000)
    served = await stand.serve(*_KNOWN)
    job = {"kind": "re-drive", "queue": "orders.dlq", "reason": "proof", "pace": {"rate": 150}}
    while not await _resume(served):  # it is refused while the broker is down
        await served.call("POST", "/admin/dlq/jobs", job)
        await asyncio.sleep(1)
    for seconds in (5.0, 5.0):
        await asyncio.sleep(seconds)
        stand.kill(served.child, "`hopback serve`")
        served = await stand.serve(*_KNOWN)
        await _resume(served)
    state = "unknown"
    for _ in range(60):
        await asyncio.sleep(2)
        state = await _resume(served) or state
        if state == "completed":
            return
    stand.problems.append(f"the job is {state} after two minutes")


async def _resume(served: Served) -> str:
    """Resume the newest job if it has stopped, and return its state."""
    found = await served.call("GET", "/admin/dlq/jobs")
    for one in found["items"][:1] if found else []:
        if one["state"] in ("interrupted", "failed", "paused"):
            await served.call("POST", f"/admin/dlq/jobs/{one['id']}/resume")
        return str(one["state"])
    return ""


async def _kill_redrive(stand: Stand) -> None:
    """Run `hopback dlq redrive`, which is killed twice and started again."""
    await stand.until_done("topology", "apply", "recommended", "--yes")
    await stand.put("orders.dlq", 2000)
    redrive = ("dlq", "redrive", "orders.dlq", "--yes", "--reason", "proof", *_KNOWN)
    for rate in ("200", "300"):
        driving = stand.start(*redrive, "--rate", rate)
        await stand.wait_ended(driving, 6)
        stand.kill(driving, "`hopback dlq redrive`")
    await stand.until_done(*redrive)


async def _kill_discard(stand: Stand) -> None:
    """Run `hopback dlq discard`, which is killed twice and started again. All removed messages must
    be in a file.
    """
    await stand.until_done("topology", "apply", "recommended", "--yes")
    await stand.put("orders.dlq", 1000)
    for at, rate in enumerate(("100", "200", "5000")):
        file = str(stand.folder / f"discarded-{at}.ndjson")
        discard = ("dlq", "discard", "orders.dlq", "--yes", "--reason", "proof", *_KNOWN)
        discarding = stand.start(*discard, "--rate", rate, "--export-to", file)
        await stand.wait_ended(discarding, 6 if at < 2 else 120)
        stand.kill(discarding, "`hopback dlq discard`")
    for path in stand.folder.glob("discarded-*"):
        for line in path.read_text(errors="replace").splitlines():
            try:
                stand.exported.add(int(json.loads(line)["body"]))
            except (ValueError, KeyError):
                continue  # the first line of the file, or an incomplete line


async def jobs(site: Site) -> Part:
    """Run re-drives and discards while their process, their server or the broker is killed."""
    several = (_redrive_by_server, _kill_redrive, _kill_discard)
    return await _play_cases(site, "re-drives and discards", several, kills=3)


async def _play_cases(
    site: Site, name: str, several: tuple[Callable[[Stand], Awaitable[None]], ...], *, kills: int
) -> Part:
    """Run all cases on one broker, first without faults and then while the broker is killed
    repeatedly.
    """
    began = time.monotonic()
    # This does not take a turn, because the commands wait for minutes and hardly use the CPU.
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(site.node())
        part = Part(name, f"{len(several)} cases, without faults and with kills", version_of(node))
        calm = [await stack.enter_async_context(stand_on(node)) for _ in several]
        await asyncio.gather(*(play(stand) for play, stand in zip(several, calm, strict=True)))
        struck = [await stack.enter_async_context(stand_on(node)) for _ in several]
        playing = [
            asyncio.ensure_future(_through(play, stand))
            for play, stand in zip(several, struck, strict=True)
        ]
        for _ in range(kills):
            await asyncio.sleep(site.chance.uniform(4, 14))
            await _until_on_disk(node)
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
        await asyncio.gather(*playing)
        part.faults["broker:_kill_-9"] = kills
        stands = [*calm, *struck]
        audits = await asyncio.gather(*(stand.audit() for stand in stands))
        for case, stand, found in zip(several * 2, stands, audits, strict=True):
            _book(part, case.__name__.strip("_"), stand, found, calm=stand in calm)
    part.seconds = time.monotonic() - began
    return part


async def _until_on_disk(node: RabbitNode) -> None:
    """Wait until no queue has been declared for 5 s. A quorum queue may stay without a leader if the
    broker is killed earlier.
    """
    known: set[tuple[str, str, str]] = set()
    since = time.monotonic()
    while time.monotonic() < since + _ON_DISK_S:
        listed = await asyncio.to_thread(node.management.call, "GET", "/queues")
        found = {(each["vhost"], each["name"], each.get("type", "")) for each in listed}
        if not found <= known:
            known, since = found, time.monotonic()
        await asyncio.sleep(0.2)


async def _through(play: Callable[[Stand], Awaitable[None]], stand: Stand) -> None:
    """Run a case until it succeeds. It may fail while the broker is down."""
    for _ in range(30):  # on a busy machine, a broker needs up to half a minute to restart
        try:
            await play(stand)
        except Exception as error:
            last = f"{type(error).__name__}: {error}"
            await asyncio.sleep(3)
        else:
            return
    stand.problems.append(f"did not finish: {last}")


def _book(part: Part, case: str, stand: Stand, found: Counter[int], *, calm: bool) -> None:
    """Compare the messages that were published with those that are left."""
    lost = stand.confirmed - set(found) - stand.exported
    doubled = sum(count - 1 for count in found.values())
    strange = [number for number in found if number >= stand.sent]
    part.rounds += 1
    part.messages += len(stand.confirmed)
    part.confirmed += len(stand.confirmed)
    part.duplicates += doubled
    part.faults = dict(Counter(part.faults) + stand.faults)
    counts = {
        Promise.LOST.value: len(lost),
        Promise.STRAYED.value: len(strange),
        # Without other faults, a duplicate is only allowed if a command was killed.
        Promise.DUPLICATED.value: doubled if calm and not stand.faults else 0,
        "did not come through": len(stand.problems),
    }
    part.broken = dict(Counter(part.broken) + Counter(counts))
    if any(counts.values()):
        told = {name: count for name, count in counts.items() if count}
        kind = "without faults" if calm else "with kills"
        part.notes.append(f"{case}, {kind}: {told} {' '.join(stand.problems)} {stand.evidence()}")
