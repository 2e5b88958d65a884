"""The embedded broker, which runs a simulated node in the same process.

It uses real time on a regular event loop and virtual time on a `VirtualTimeLoop`.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from hopback.broker.embedded.connection import EmbeddedConnection
from hopback.broker.embedded.direct_replies import DirectReplies
from hopback.broker.embedded.faults import Fault, Faults
from hopback.broker.embedded.node import Node
from hopback.broker.embedded.snapshot import NodeSnapshot, snapshot
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.durations import Duration, read_seconds
from hopback.errors import ConnectionFailed, InvalidDeclaration, Problem
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.broker.embedded.channel import EmbeddedChannel
    from hopback.clock import Clock
    from hopback.topology.model import Policy

_WINDOW = 1000
"""Maximum number of unconfirmed publishes per channel. It is so high that tests don't reach it by
accident.
"""
_CONFIRM_TIMEOUT_S = 30.0
"""Timeout of confirms in seconds. It is the same as for connections to RabbitMQ."""


class EmbeddedBroker:
    """An in-memory RabbitMQ for development, tests and simulations in a single process.

    `version` is the version to emulate. `seed` makes generated names and random faults
    reproducible. `window` and `confirm_timeout` apply to clients. `node` is the simulated node, and
    `faults` injects faults.
    """

    def __init__(
        self,
        *,
        version: BrokerVersion = BrokerVersion(4, 0),  # noqa: B008  a frozen value
        clock: Clock | None = None,
        seed: int = 0,
        consumer_timeout: Duration | None = 1800.0,
        max_body_bytes: int | None = None,
        window: int = _WINDOW,
        confirm_timeout: Duration = _CONFIRM_TIMEOUT_S,
        user: str = "guest",
    ) -> None:
        given: object = version
        if not isinstance(given, BrokerVersion):
            expected = "a BrokerVersion, as in `BrokerVersion(3, 12)`"
            found = Problem("version", expected, repr(given))
            raise InvalidDeclaration((found,), where="EmbeddedBroker")
        self.node: Node = Node(
            version,
            clock or LoopClock(time.time),
            seed=seed,
            consumer_timeout=None
            if consumer_timeout is None
            else read_seconds(consumer_timeout, "consumer_timeout", where="EmbeddedBroker"),
            max_body_bytes=max_body_bytes,
        )
        self.node.timers.on_earlier = self._arm
        self.faults: Faults = Faults(seed)
        self.replies: DirectReplies[EmbeddedChannel] = DirectReplies()
        """Channels that are waiting for direct replies."""
        self.window = window
        self.confirm_timeout: float = read_seconds(
            confirm_timeout, "confirm_timeout", where="EmbeddedBroker"
        )
        self.user = user
        self.blocked: bool = False
        """Whether publishers are blocked, like during a memory alarm."""
        self._connections: list[EmbeddedConnection] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def address(self) -> str:
        """Text for display, since there is no network address."""
        return f"embedded RabbitMQ {self.node.profile.version}"

    @property
    def version(self) -> BrokerVersion:
        """The version being emulated."""
        return self.node.profile.version

    @property
    def connections(self) -> tuple[EmbeddedConnection, ...]:
        """The open connections, oldest first."""
        return tuple(self._connections)

    async def connect(self, name: str = "hopback") -> EmbeddedConnection:
        """Open a connection. Raises ConnectionFailed if this fault is injected."""
        await asyncio.sleep(self.faults.latency)
        if self.faults.active and self.faults.strikes(Fault.REFUSE_CONNECTION):
            raise ConnectionFailed(f"{self.address} refused the connection: a fault was injected")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Timers need this loop. If there was a previous loop, it has ended and its timers are
            # gone.
            self._loop, self._timer = loop, None
            due = self.node.next_deadline()
            if due is not None:
                self._arm(due)
        connection = EmbeddedConnection(self, name)
        self._connections.append(connection)
        return connection

    def forget(self, connection: EmbeddedConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)

    def set_policy(self, policy: Policy, *, operator: bool = False) -> None:
        """Create or overwrite a policy. Raises ValueError if RabbitMQ would return 400."""
        self.node.policies.put(policy, operator=operator)

    def clear_policy(self, name: str, *, operator: bool = False) -> None:
        """Delete a policy. Does nothing if it does not exist."""
        self.node.policies.remove(name, operator=operator)

    def snapshot(self) -> NodeSnapshot:
        return snapshot(self.node)

    def restart(self) -> None:
        """Restart the broker. Connections and transient objects and messages are lost."""
        self.cut(buffered=False)
        self.node.restart()

    def cut(self, connection: EmbeddedConnection | None = None, *, buffered: bool = True) -> None:
        """Cut one or all connections. If `buffered` is set, data that was already sent still
        arrives.
        """
        for each in (connection,) if connection is not None else self.connections:
            each.cut(buffered=buffered)

    def block(self, *, blocked: bool = True) -> None:
        """Block or unblock publishers, like a memory alarm does.

        The broker stops reading from connections that publish. Acks on the same connection are
        delayed as well.
        """
        self.blocked = blocked
        for connection in () if blocked else self.connections:
            connection.wait_unblocked()

    def _arm(self, due: float) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(loop.time() + max(0.0, due - self.node.now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.node.run_due()
        due = self.node.next_deadline()
        if due is not None:
            self._arm(due)
