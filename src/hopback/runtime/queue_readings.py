"""Read the queues of a virtual host from the management API, and find what only it knows.

These are dead letters that the broker holds back, consumer timeouts, and policies that change the
TTL of declared queues.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from hopback.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from hopback.broker.management import Management
    from hopback.broker.management.readings import QueueReading
    from hopback.broker.port import Connection
    from hopback.observe.events import Bus
    from hopback.runtime.depths import Watched
    from hopback.topology.model import Queue, Topology

Receiver: TypeAlias = "Callable[[Sequence[QueueReading] | None], object]"
"""Receives all queues, or None if the management API did not return them."""


class QueueReadings:
    """Reads all queues at regular intervals and passes them to receivers."""

    def __init__(
        self,
        management: Management,
        vhost: str,
        receivers: Iterable[Receiver],
        *,
        every: float = 15.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._management = management
        self._vhost = vhost
        self._receivers = tuple(receivers)
        self._every = every
        self._sleep = sleep

    async def attend(self, _connection: Connection) -> None:
        while True:
            readings: Sequence[QueueReading] | None = None
            with suppress(BrokerError):
                readings = await self._management.queues(self._vhost)
            for receive in self._receivers:
                receive(readings)
            await self._sleep(self._every)


def held_back(
    readings: Sequence[QueueReading] | None, watched: Iterable[Watched]
) -> dict[str, int | None]:
    """Return the number of dead letters that each source queue holds back (`messages_dlx`)."""
    counts = {one.queue.name: one.counts.held_back for one in readings or ()}
    return {one.queue: counts.get(one.queue) for one in watched if one.role != "dead-letter"}


class HeldBackWatch:
    """Reports the dead letters that source queues hold back."""

    def __init__(
        self,
        watched: Callable[[], Iterable[Watched]],
        tell: Callable[[str, int | None], object],
    ) -> None:
        self._watched = watched
        self._tell = tell
        self._found: dict[str, int | None] = {}

    def receive(self, readings: Sequence[QueueReading] | None) -> None:
        # The numbers of queues that were removed from the service become unknown.
        self._found = dict.fromkeys(self._found) | held_back(readings, self._watched())
        for queue, messages in self._found.items():
            self._tell(queue, messages)


def consumer_timeouts(readings: Sequence[QueueReading] | None) -> Iterator[tuple[str, float]]:
    """Yield each queue with a consumer timeout, in seconds.

    The API only returns timeouts set by arguments or policies. The default in the broker's
    configuration is not visible.
    """
    for one in readings or ():
        found = (
            one.queue.arguments.get("x-consumer-timeout"),
            (one.effective_policy or {}).get("consumer-timeout"),
        )
        known = [value for value in found if isinstance(value, int) and value > 0]
        if known:
            yield one.queue.name, min(known) / 1000


class PolicyWatch:
    """Finds policies that change the TTL of declared queues.

    `message-ttl` makes delays shorter, and `expires` deletes queues. A `topology.warning` is
    emitted once for each policy.
    """

    def __init__(
        self,
        topology: Callable[[], Topology],
        bus: Bus,
        tell: Callable[[int | None], object],
    ) -> None:
        self._topology = topology
        self._bus = bus
        self._tell = tell
        self._said: set[tuple[str, str]] = set()

    def receive(self, readings: Sequence[QueueReading] | None) -> None:
        if readings is None:
            self._tell(None)
            return
        found = find_changed_waits({one.name: one for one in self._topology().queues}, readings)
        self._tell(len({queue for queues in found.values() for queue in queues}))
        for (policy, key), queues in found.items():
            if (policy, key) not in self._said:
                effect = "shortens waits" if key == "message-ttl" else "deletes unused queues"
                text = (
                    f"The policy sets `{key}` on {len(queues)} declared queues, among them"
                    f" {queues[0]!r}, and {effect}. Exclude these queues from its pattern."
                )
                warning = {"rule": "policy-changes-waits", "place": f"policy:{policy}"}
                self._bus.emit("topology.warning", warning | {"text": text})
        self._said = set(found)


def find_changed_waits(
    declared: Mapping[str, Queue], readings: Iterable[QueueReading]
) -> dict[tuple[str, str], list[str]]:
    """Group the queues by the `message-ttl` or `expires` policy that affects them."""
    found: dict[tuple[str, str], list[str]] = {}
    for reading in readings:
        queue = declared.get(reading.queue.name)
        in_force = reading.effective_policy or {}
        policy = reading.policy or reading.operator_policy or "unknown"
        if queue is None:
            continue
        for key in ("message-ttl", "expires"):
            value, own = in_force.get(key), queue.arguments.get(f"x-{key}")
            if isinstance(value, int) and not (isinstance(own, int) and own <= value):
                found.setdefault((policy, key), []).append(queue.name)
    return found
