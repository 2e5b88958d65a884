"""What all clients of a server share: the node, the users, the limits, and who is there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.broker.embedded.node import Node
from hopback.broker.server.pressure import Pressure, give_back_memory
from hopback.broker.server.replies import Replies
from hopback.broker.server.users import Users

if TYPE_CHECKING:
    from hopback.broker.server.client import Client
    from hopback.broker.server.settings import ServerSettings
    from hopback.clock import Clock

__all__ = ["House"]


class House:
    """One broker with all its clients."""

    def __init__(self, settings: ServerSettings, clock: Clock, seed: int) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.users = Users(settings.users)
        self.node = Node(
            settings.version,
            clock,
            seed=seed,
            consumer_timeout=settings.consumer_timeout,
            max_body_bytes=settings.limits.message_bytes,
        )
        self.clients: list[Client] = []
        self.empty = asyncio.Event()
        """Whether nobody is there."""
        self.empty.set()
        self.cluster_name = "hopback@localhost"
        self.blocked = False
        """Whether publishers wait."""
        self.stirred = 0
        """How often a client has said something."""
        self.spoken = 0
        """How often a client was told something."""
        self.replies = Replies()
        self._pressure = Pressure(self)
        self._alarmed = False

    @property
    def full_version(self) -> str:
        """The version with all three numbers, as RabbitMQ tells it."""
        version = self.node.profile.version
        return f"{version.major}.{version.minor}.{version.patch}"

    # Who is there.

    def enter(self, client: Client) -> bool:
        """Whether there is room for another."""
        self.stir()
        if len(self.clients) >= self.limits.connections:
            return False
        self.clients.append(client)
        self.empty.clear()
        return True

    def leave(self, client: Client) -> None:
        """A client is gone."""
        self.stir()
        if client in self.clients:
            self.clients.remove(client)
        if not self.clients:
            self.empty.set()

    def may_open_channel(self) -> bool:
        """Whether there is room for another channel."""
        channels = sum(len(session.channels) for session in self.node.sessions)
        return channels < self.limits.all_channels

    def is_full(self) -> bool:
        """Whether as much is declared as may be."""
        wiring = self.node.wiring
        declared = len(self.node.queues) + len(wiring.exchanges) + wiring.binding_count
        return declared >= self.limits.declared

    # What happens.

    def stir(self) -> None:
        """A client came, spoke or went."""
        self.stirred += 1

    def spoke(self) -> None:
        """A client was told something."""
        self.spoken += 1

    def is_held(self) -> bool:
        """Whether a client holds a delivery that it has not settled."""
        return any(queue.unacked for queue in self.node.queues.values())

    # Memory.

    def took(self, size: int) -> None:
        """A message of this size was published."""
        self._pressure.add(size)

    def is_receiving_much(self) -> bool:
        """Whether messages that are not complete yet take much already."""
        unfinished = sum(client.core.unfinished_bytes for client in self.clients)
        return unfinished > self.limits.memory_bytes / 4

    def alarm(self, *, on: bool) -> None:
        """Hold publishers back, as a memory alarm does, or let them go on."""
        self._alarmed = on
        self.weigh()

    def weigh(self) -> None:
        """Look whether publishers have to wait, or need not any more."""
        waited, self.blocked = self.blocked, self._alarmed or self._pressure.is_high
        if waited and not self.blocked:
            for client in tuple(self.clients):
                client.listen_again()

    def tidy_up(self) -> None:
        """Give memory back after a burst: called now and then."""
        if self._pressure.is_giving_back_worth_it():
            give_back_memory()

    def check_memory(self) -> None:
        """Measure anew: called now and then, and by the alarm itself."""
        self._pressure.measure()
        self.weigh()
