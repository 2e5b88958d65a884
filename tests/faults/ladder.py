"""Delayed and periodic messages while the broker is restarted in order and while their queues are
deleted.

`python -m tests.faults.ladder 3.10 4.0 4.3` runs all scenarios on these brokers and prints the
counts.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hopback import App, Context, RabbitMQ, Service
from hopback.broker.supervise import Backoff
from hopback.errors import BrokerError
from hopback.runtime import Environment
from tests.faults.results import Result
from tests.faults.site import installation_of
from tests.harness.configuration import QUICK_DEAD_LETTERS_MS, Timings
from tests.harness.management import ManagementFailed
from tests.harness.rabbitmq import RabbitNode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.site import Site

__all__ = ["MOST_SECOND_ARRIVALS", "SCENARIOS", "LadderResult", "ladder"]

_PATIENCE_S = 120.0
"""How long a scenario waits after the last message is due, in seconds. Messages that have not
arrived then count as lost.
"""

MOST_TWICE = 100 + 40 + 2 * 32
"""Messages that may arrive twice after one restart: the prefetch of the last hop, that of the handler, and
32 messages of each of the two delay queues that a wait of 6 s passes. RabbitMQ dead-letters those again, as
new messages.
"""


@dataclass(slots=True)
class LadderResult:
    """The counts of a scenario."""

    messages: int = 0
    lost: int = 0
    early: int = 0
    earliest_s: float = 0.0
    """How early the earliest message was, in seconds."""
    twice: int = 0
    latest_s: float = 0.0
    events: dict[str, int] = field(default_factory=dict)


class _Delaying:
    """An application that delays messages and records when they arrive."""

    def __init__(self, node: RabbitNode, cancellations: Any = None) -> None:
        self.node = node
        self.due: dict[str, float] = {}
        self.came: dict[str, list[float]] = {}
        self.events: dict[str, int] = {}
        self.app = App("delaying")
        self.app.delays("1h", cancellations=cancellations)
        self.app.queue("ladder.work", bind={"ladder.events": ["#"]}, retry=["1s"])

        @self.app.handler("ladder.work")
        async def work(context: Context) -> None:
            self.came.setdefault(context.message_id, []).append(time.time())

        environment = Environment(reconnect=Backoff(first=0.2, most=1.0))
        environment.bus.subscribe(self._count)
        self.service = Service(self.app, RabbitMQ(node.url), environment=environment)

    def _count(self, name: str, _fields: Any) -> None:
        self.events[name] = self.events.get(name, 0) + 1

    async def publish(self, count: int, seconds: float, *, by_clock: bool = False) -> None:
        """Publish messages until each one has been confirmed. Their delays start at the first
        attempt.
        """
        turns = asyncio.Semaphore(50)

        async def one(number: int) -> None:
            async with turns:
                name, due = f"m-{len(self.due)}-{number}", time.time() + seconds
                self.due[name] = due
                wait: dict[str, Any] = {"delay": seconds}
                if by_clock:
                    wait = {"at": datetime.fromtimestamp(due, UTC)}
                while True:
                    try:
                        await self.app.publish("ladder.work", {}, message_id=name, **wait)
                    except BrokerError:
                        await asyncio.sleep(0.2)
                    else:
                        return

        await asyncio.gather(*map(one, range(count)))

    async def wait_settled(self) -> None:
        """Wait until all messages have arrived, and then a little longer for duplicates."""
        left_s = max(self.due.values()) - time.time() + _PATIENCE_S
        await until(lambda: set(self.due) <= set(self.came), left_s)
        await asyncio.sleep(5)

    def result(self) -> LadderResult:
        first = {name: min(moments) for name, moments in self.came.items()}
        ahead = [self.due[name] - moment for name, moment in first.items()]
        return LadderResult(
            messages=len(self.due),
            lost=len(set(self.due) - set(first)),
            early=sum(one > 0.05 for one in ahead),
            earliest_s=round(max([0.0, *ahead]), 2),
            twice=sum(len(moments) - 1 for moments in self.came.values()),
            latest_s=round(max([0.0, *(-one for one in ahead)]), 2),
            events=dict(sorted(self.events.items())),
        )


async def until(fulfilled: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition is true, or until the time is over."""
    ends = time.monotonic() + seconds
    while not fulfilled() and time.monotonic() < ends:  # noqa: ASYNC110 - the counts do not signal anything
        await asyncio.sleep(0.01)


async def _with_application(
    node: RabbitNode,
    play: Callable[[_Delaying], Awaitable[None]],
    cancellations: Any = None,
) -> LadderResult:
    delaying = _Delaying(node, cancellations)
    serving = asyncio.create_task(delaying.service.run())
    try:
        await asyncio.wait_for(delaying.service.ready.wait(), 60)
        await play(delaying)
        await delaying.wait_settled()
    finally:
        delaying.service.stop()
        await serving
    return delaying.result()


class _SlowLookup:
    """A store of cancellations with a slow database, so that many runs wait before they publish."""

    def __init__(self) -> None:
        self.begun = 0

    async def begin(self, _message_id: str) -> bool:
        self.begun += 1
        await asyncio.sleep(3)
        return True


async def restart_in_order(
    node: RabbitNode, *, messages: int = 600, restarts: int = 2
) -> LadderResult:
    """Restart the broker while the last hop publishes as fast as it can."""

    async def play(delaying: _Delaying) -> None:
        await asyncio.sleep(5)  # the broker stores declarations with a delay
        for _ in range(restarts):
            arrived = len(delaying.came)
            await delaying.publish(messages // restarts, 6)
            await until(lambda: len(delaying.came) > arrived, 60)  # noqa: B023 - called at once
            await asyncio.to_thread(node.restart)
            await until(lambda: set(delaying.due) <= set(delaying.came), 60)

    return await _with_application(node, play)


async def restart_before_publish(
    node: RabbitNode, *, messages: int = 100, restarts: int = 2
) -> LadderResult:
    """Restart the broker while runs of the last hop have not published their messages yet."""
    lookup = _SlowLookup()

    async def play(delaying: _Delaying) -> None:
        await asyncio.sleep(5)
        for _ in range(restarts):
            begun = lookup.begun
            await delaying.publish(messages // restarts, 4)
            await until(lambda: lookup.begun >= begun + messages // restarts, 60)  # noqa: B023
            await asyncio.to_thread(node.restart)
            await until(lambda: set(delaying.due) <= set(delaying.came), 60)

    return await _with_application(node, play, lookup)


async def delete_level(node: RabbitNode, *, messages: int = 200) -> LadderResult:
    """Delete one level before messages are published, and another one while messages wait in the
    level above.
    """

    async def play(delaying: _Delaying) -> None:
        for level, wait_s in (("hopback.delay.level-03", 0), ("hopback.delay.level-02", 2)):
            if not wait_s:
                _delete_queue(node, level)
            await delaying.publish(messages // 4, 13)
            await delaying.publish(messages // 4, 13, by_clock=True)
            if wait_s:  # all messages wait in the level above
                await asyncio.sleep(wait_s)
                _delete_queue(node, level)
            await until(lambda: set(delaying.due) <= set(delaying.came), 60)

    return await _with_application(node, play)


async def shorten_waits(node: RabbitNode, *, messages: int = 100) -> LadderResult:
    """Set a policy that shortens the TTL of all queues to two seconds."""

    async def play(delaying: _Delaying) -> None:
        node.ctl("set_policy", "all", ".*", '{"message-ttl": 2000}', "--apply-to", "queues")
        await asyncio.sleep(2)
        await delaying.publish(messages // 2, 13)
        await delaying.publish(messages // 2, 13, by_clock=True)

    return await _with_application(node, play)


async def delete_exchange(node: RabbitNode) -> LadderResult:
    """Delete an exchange, and then a binding.

    Another program publishes messages, so no publish of Hopback fails.
    """
    waits: list[float] = []

    async def play(delaying: _Delaying) -> None:
        delaying.due["none"] = time.time()
        delaying.came["none"] = [time.time()]
        for delete in (_delete_exchange, _delete_binding):
            delete(node)
            began = time.monotonic()
            await until(lambda: _is_bound(node), 90)
            waits.append(round(time.monotonic() - began, 1))

    found = await _with_application(node, play)
    found.lost = sum(wait >= 90 for wait in waits)
    found.latest_s = max(waits)
    return found


def _delete_queue(node: RabbitNode, queue: str) -> None:
    node.management.call("DELETE", f"/queues/%2F/{queue}")


def _try_delete(node: RabbitNode, queue: str) -> bool:
    """Delete a queue. Returns False if the queue has not been restored yet."""
    try:
        _delete_queue(node, queue)
    except ManagementFailed:
        return False
    return True


def _delete_exchange(node: RabbitNode) -> None:
    node.management.call("DELETE", "/exchanges/%2F/ladder.events")


def _delete_binding(node: RabbitNode) -> None:
    (found,) = _bindings(node)
    place = f"/bindings/%2F/e/ladder.events/q/ladder.work/{found['properties_key']}"
    node.management.call("DELETE", place)


def _bindings(node: RabbitNode) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.management.call("GET", "/queues/%2F/ladder.work/bindings")
    return [one for one in found if one["source"] == "ladder.events"]


def _is_bound(node: RabbitNode) -> bool:
    return bool(_bindings(node))


async def delete_schedule(node: RabbitNode, *, deletions: int = 4) -> LadderResult:
    """Let three processes send a message every second while the queue of the schedule is deleted
    several times.
    """
    ids: list[str] = []
    services = [_create_ticker(node, ids) for _ in range(3)]
    running = [asyncio.create_task(service.run()) for service in services]
    try:
        for service in services:
            await asyncio.wait_for(service.ready.wait(), 60)
        await asyncio.sleep(20)
        for _ in range(deletions):
            await until(lambda: _try_delete(node, "ladder.tick.schedule"), 60)
            await asyncio.sleep(15)
    finally:
        for service in services:
            service.stop()
        await asyncio.gather(*running)
    moments = [datetime.fromisoformat(one.partition("@")[2]).timestamp() for one in ids]
    due = set(range(int(min(moments)), int(max(moments))))
    return LadderResult(
        messages=len(due), lost=len(due - {*map(int, moments)}), twice=len(ids) - len(set(ids))
    )


def _create_ticker(node: RabbitNode, ids: list[str]) -> Service:
    app = App("ticking")

    @app.every("1s", name="ladder.tick", missed="each", retry=["1s"])
    async def tick(context: Context) -> None:
        ids.append(context.message_id)

    return Service(app, RabbitMQ(node.url))


SCENARIOS: dict[str, Callable[[RabbitNode], Awaitable[LadderResult]]] = {
    "restart-in-order": restart_in_order,
    "restart-before-publish": restart_before_publish,
    "delete-level": delete_level,
    "shorten-waits": shorten_waits,
    "delete-exchange": delete_exchange,
    "delete-schedule": delete_schedule,
}


MOST_SECOND_ARRIVALS = {
    "restart-in-order": 2 * MOST_TWICE,
    "restart-before-publish": 10,
    "delete-schedule": 8,
}
"""How many messages may arrive twice. After a restart, these are the unacked messages. For a
message that is due every second, there may be two for each deletion of its schedule. In all other
scenarios, there may be none.
"""


async def ladder(site: Site) -> Result:
    """Run each scenario on its own node."""
    timings = replace(site.timings, dead_letter_retry_ms=QUICK_DEAD_LETTERS_MS)
    checks = []
    for name, play in SCENARIOS.items():
        async with site.turns, replace(site, timings=timings).node() as node:
            found = await play(node)
        is_broken = found.lost or found.early or found.twice > MOST_SECOND_ARRIVALS.get(name, 0)
        measured = (
            f"{found.messages} messages: {found.lost} lost, {found.early} early,"
            f" {found.twice} arrived twice, at most {found.latest_s:g} s late"
        )
        verdict = "failed" if is_broken else "holds"
        checks.append((f"delays, {name}, RabbitMQ {site.broker}", measured, verdict))
    return Result("", [], checks)


def main() -> int:
    """Run the scenarios and print the counts. Returns 1 if a message was lost or too early."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.ladder", description=__doc__)
    parser.add_argument("broker", nargs="+", choices=["3.10", "4.0", "4.3"])
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), action="append")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    broken = False
    for broker in options.broker:
        for name in options.scenario or SCENARIOS:
            timings = Timings(dead_letter_retry_ms=QUICK_DEAD_LETTERS_MS)
            with RabbitNode(installation=installation_of(broker), timings=timings) as node:
                found = asyncio.run(_run(name, node))
            print(broker, name, found, flush=True)  # noqa: T201 - a program for people
            broken |= bool(found.lost or found.early)
    return int(broken)


async def _run(name: str, node: RabbitNode) -> LadderResult:
    return await SCENARIOS[name](node)


if __name__ == "__main__":
    sys.exit(main())
