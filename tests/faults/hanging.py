"""Handlers that never return, while the same queue has other messages.

`python -m tests.faults hanging --brokers 3.10,4.0,4.3` runs all combinations. A bystander is a
message whose handler takes 20 ms. It must run once and must not be parked. It also must not wait
until the broker requeues the message that hangs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hopback import App, RabbitMQ, Service
from hopback.broker.port import count_now
from hopback.headers import read_history
from hopback.message import Message, Properties
from hopback.runtime import Environment
from tests.faults.results import Result

if TYPE_CHECKING:
    from hopback.broker.port import Connection
    from tests.faults.site import Site

__all__ = ["HANGS", "HangingResult", "hanging", "run_beside_hanging"]

HANGS = ("coroutine", "thread")
"""The kinds of handlers that hang. A coroutine can be cancelled at a redelivery, a thread cannot.
"""

_CONCURRENCY, _PREFETCH, _ATTEMPTS = 20, 40, 2
_PACE_S = 0.05
_STATES_OF_A_START = 4  # two connections with the states connecting and ready; each loss adds more
_SHORT_MS, _LONG_MS = 10_000, 40_000
"""Two consumer timeouts in ms. A consumer moves to a new channel after 20 s. The long timeout is
above this. The short one is below, so that the broker requeues all deliveries once.
"""


@dataclass(slots=True)
class HangingResult:
    """The results for the bystanders and for the message that hangs."""

    hang: str
    timeout_ms: int
    bystanders: int = 0
    again: int = 0
    """How often bystanders ran again."""
    parked: int = 0
    missing: int = 0
    slowest_s: float = 0.0
    """The longest time between the publish and the handler of a bystander."""
    attempts: int = 0
    """How often the handler was called with the message that hangs."""
    reason: str = ""
    """The reason why the message that hangs was parked."""
    lost: int = 0
    """How many connections were lost."""
    quarantines: int = 0

    @property
    def bound(self) -> int:
        """How many bystanders may run again. If the timeout is short, this is the number of
        unsettled deliveries.
        """
        return _PREFETCH + _CONCURRENCY if self.timeout_ms <= _SHORT_MS else 0

    @property
    def holds(self) -> bool:
        """Whether all promises were kept."""
        harmed = self.parked or self.missing or self.lost or self.quarantines
        return not harmed and self.again <= self.bound and "consumer timeout" in self.reason

    def row(self, broker: str) -> tuple[str, str, str]:
        """Return the row of the page."""
        what = f"a {self.hang} that never returns, consumer timeout {self.timeout_ms // 1000} s, {broker}"
        much = (
            f"{self.bystanders:,} other messages: {self.parked} parked, {self.again} run again,"
            f" {self.missing} missing, the slowest after {self.slowest_s:.1f} s;"
            f" {self.attempts} calls of the hanging handler, {self.quarantines} quarantines"
        )
        return (what, much, "holds" if self.holds else "failed")


class _Application:
    """Counts the calls of its handler for each number. For a negative number, the handler never
    returns.
    """

    def __init__(self, hang: str, attempts: int) -> None:
        self.runs = Counter[int]()
        self.published: dict[int, float] = {}
        self.slowest_s = 0.0
        self.release = threading.Event()
        self.app = App("hanging")
        declare: Any = self.app.handler(
            "in",
            retry=["1s"],
            attempts=attempts,
            concurrency=_CONCURRENCY,
            prefetch=_PREFETCH,
        )
        declare(self._in_thread if hang == "thread" else self._as_coroutine)

    def _in_thread(self, number: int) -> None:
        self._begin(number)
        if number < 0:
            self.release.wait()
        time.sleep(0.02)

    async def _as_coroutine(self, number: int) -> None:
        self._begin(number)
        if number < 0:
            await asyncio.Event().wait()
        await asyncio.sleep(0.02)

    def _begin(self, number: int) -> None:
        self.runs[number] += 1
        if number >= 0 and self.runs[number] == 1:
            waited = time.monotonic() - self.published[number]
            self.slowest_s = max(self.slowest_s, waited)


async def run_beside_hanging(
    url: str, hang: str, timeout_ms: int, attempts: int = _ATTEMPTS
) -> HangingResult:
    """Publish a message that hangs and wait until it is parked. Bystanders are published meanwhile."""
    subject, events = _Application(hang, attempts), Counter[str]()
    environment = Environment()
    environment.bus.subscribe(lambda name, _fields: events.update([name]))
    service = Service(subject.app, RabbitMQ(url), environment=environment)
    running = asyncio.create_task(service.run())
    try:
        await asyncio.wait_for(service.ready.wait(), 60)
        connection = await RabbitMQ(url).connect("operator")
        async with asyncio.timeout(60 + 4 * _ATTEMPTS * timeout_ms / 1000):
            bystanders = await _publish_until_parked(connection, subject)
        result = HangingResult(hang, timeout_ms, bystanders, slowest_s=subject.slowest_s)
        result.attempts = subject.runs.pop(-1)
        result.again = sum(subject.runs.values()) - len(subject.runs)
        result.missing = bystanders - len(subject.runs)
        channel = await connection.open_channel()
        while (one := await channel.get("in.dlq")) is not None:
            channel.ack(one.tag)
            failure = read_history(one.properties.headers, "in").failure
            if one.body == b"-1":
                result.reason = failure.message if failure else ""
            else:
                result.parked += 1
        result.quarantines = events["quarantine.begun"]
        result.lost = max(0, events["connection.state"] - _STATES_OF_A_START)
        await connection.close()
    finally:
        subject.release.set()
        service.stop()
        await running
    return result


async def _publish_until_parked(connection: Connection, subject: _Application) -> int:
    """Publish bystanders until the message that hangs is parked, and return their number."""
    channel = await connection.open_channel()
    number = 0
    while not await _is_parked(connection):
        for one in (number, *([-1] if number == 0 else [])):
            subject.published[one] = time.monotonic()
            properties = Properties(message_id=str(one), delivery_mode=2)
            await channel.publish(Message("", "in", b"%d" % one, properties))
        number += 1
        await asyncio.sleep(_PACE_S)
    while not set(range(number)) <= set(subject.runs):  # noqa: ASYNC110 - the handlers do not signal anything
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)  # wait for redeliveries that are on their way
    return number


async def _is_parked(connection: Connection) -> bool:
    state = await count_now(connection, "in.dlq")
    return state is not None and state.messages > 0


async def hanging(site: Site) -> Result:
    """Run both kinds of handlers with both timeouts."""
    checks = []
    for timeout_ms in (_SHORT_MS, _LONG_MS):
        timings = replace(site.timings, consumer_timeout_ms=timeout_ms, tick_ms=1_000)
        async with site.turns, replace(site, timings=timings).node() as node:
            for hang in HANGS:
                result = await run_beside_hanging(node.url, hang, timeout_ms)
                checks.append(result.row(site.broker))
                connection = await RabbitMQ(node.url).connect("operator")
                channel = await connection.open_channel()
                await channel.delete_queue("in")
                await connection.close()
    return Result("", [], checks)
