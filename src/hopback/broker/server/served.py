"""The state shared by all clients of a server: nodes, users, limits, memory and connections."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from hopback.broker.embedded.direct_replies import DirectReplies
from hopback.broker.embedded.journal import Loss
from hopback.broker.embedded.node import Node
from hopback.broker.embedded.refusal import Refusal
from hopback.broker.embedded.timers import Timers
from hopback.broker.server.users import EVERYTHING, Permissions, UserRights, Users
from hopback.durations import read_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.session import Session
    from hopback.broker.server.channel import ServerChannel
    from hopback.broker.server.client import Client
    from hopback.broker.server.settings import ServerLimits, ServerSettings
    from hopback.clock import Clock


MESSAGE_BYTES = 600
"""Approximate memory used by a message, not including its body."""
_WORTH_GIVING_BACK = 16 * 1024 * 1024
"""Bytes to publish before memory is returned to the system. With less, it is not worth it."""
_HIGH = 0.95
"""Publishers are blocked at this fraction of the limit, which leaves room for messages in transit.
"""
_LOW = 0.8
"""Publishers are unblocked at this fraction. The difference keeps them from being blocked again
immediately.
"""


class Pressure:
    """Tracks the memory used by the messages of a broker."""

    def __init__(self, broker: ServedBroker) -> None:
        self._broker = broker
        self._limit = broker.limits.memory_bytes
        self._used = 0
        self._copies: WeakKeyDictionary[Node, int] = WeakKeyDictionary()
        self._published = 0
        self.is_high: bool = False
        """Whether publishers are blocked."""

    def add(self, node: Node, size: int) -> None:
        """Count the memory of a message and its copies."""
        copies = node.copies
        self._published += size + MESSAGE_BYTES
        self._used += size + (copies - self._copies.get(node, 0)) * MESSAGE_BYTES
        self._copies[node] = copies
        if self._used > self._limit and not self.is_high:
            self._broker.check_memory()

    def is_giving_back_worth_it(self) -> bool:
        """Return True if enough was published since the last time. If so, the count is reset."""
        worth = self._published > _WORTH_GIVING_BACK
        if worth:
            self._published = 0
        return worth

    def measure(self) -> None:
        """Recalculate the memory. If large messages are incomplete, their clients may be
        disconnected.
        """
        nodes = self._broker.nodes
        stored = 0
        for queue in (queue for node in nodes for queue in node.queues.values()):
            count = len(queue.ready) + len(queue.safe) + len(queue.delays)
            stored += queue.byte_count + queue.safe.byte_count + count * MESSAGE_BYTES
        held = sum(
            len(taken.content.body) + MESSAGE_BYTES for node in nodes for taken in node.deliveries()
        )
        begun = [(client.core.unfinished_bytes, client) for client in self._broker.clients]
        unfinished = sum(size for size, _ in begun)
        if unfinished > self._limit / 4:
            for size, client in begun:
                if size * len(begun) >= unfinished:
                    client.socket.abort()
            unfinished = 0
        self._used = stored + held + unfinished
        self.is_high = self._used > self._limit * (_LOW if self.is_high else _HIGH)


def give_back_memory() -> None:
    """Return memory of deleted messages to the operating system.

    glibc does not do this by itself: after 100,000 messages of 1 KiB it keeps 134 MB, and only 31
    MB after this call. If the C library does not have this function, only the garbage collector
    runs.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class ServedBroker:
    def __init__(self, settings: ServerSettings, clock: Clock, seed: int) -> None:
        self.settings = settings
        self.limits: ServerLimits = settings.limits
        restricted = {user for user, _ in settings.permissions}
        self.users: Users = Users(
            settings.users, {**dict.fromkeys(restricted, ()), **settings.tags}
        )
        self.permissions: Permissions = Permissions()
        self.timers: Timers = Timers()
        self.vhosts: dict[str, Node] = {}
        """Virtual hosts by name. Each of them has its own queues, exchanges and policies."""
        self._clock = clock
        self._seed = seed
        self.node: Node = self._new_node("/")
        """The node of the virtual host `/`. Its timers are shared with the others."""
        for vhost in settings.vhosts:
            self.add_vhost(vhost)
        for user in settings.users:
            if user not in restricted:
                for vhost in self.vhosts:
                    self.permissions.put(user, vhost, EVERYTHING)
        for (user, vhost), permission in settings.permissions.items():
            self.permissions.put(user, vhost, permission)
        self.clients: list[Client] = []
        self.empty: asyncio.Event = asyncio.Event()
        """Set if no clients are connected."""
        self.empty.set()
        self.ports: dict[str, int] = {}
        """The port of each protocol."""
        self.cluster_name = "hopback@localhost"
        self.vhost_limits: dict[str, dict[str, int]] = {}
        self.user_limits: dict[str, dict[str, int]] = {}
        """Limits set with the management API. They are shown but have no effect."""
        self.blocked: bool = False
        """Whether publishers are blocked."""
        self.stirred: int = 0
        """How often clients have connected, sent data or disconnected."""
        self.spoken: int = 0
        """How many deliveries were queued for clients."""
        self.replies: DirectReplies[ServerChannel] = DirectReplies()
        self._pressure = Pressure(self)
        self._alarmed = False

    @property
    def full_version(self) -> str:
        """The version in the format of RabbitMQ, which has three numbers."""
        version = self.node.profile.version
        return f"{version.major}.{version.minor}.{version.patch}"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of all virtual hosts."""
        return tuple(self.vhosts.values())

    def add_vhost(self, name: str) -> bool:
        """Create a virtual host. Returns True if it was created."""
        if name in self.vhosts:
            return False
        node = self.vhosts[name] = self._new_node(name)
        if name == "/":
            self.node = node
        return True

    def _new_node(self, vhost: str) -> Node:
        timeout = self.settings.consumer_timeout
        return Node(
            self.settings.version,
            self._clock,
            seed=self._seed,
            consumer_timeout=None
            if timeout is None
            else read_seconds(timeout, "consumer_timeout", where="ServerSettings"),
            max_body_bytes=self.limits.message_bytes,
            vhost=vhost,
            timers=self.timers,
        )

    def remove_vhost(self, name: str) -> bool:
        """Delete a virtual host and its objects. Returns True if it existed."""
        node = self.vhosts.pop(name, None)
        if node is None:
            return False
        self.permissions.forget_vhost(name)
        self.vhost_limits.pop(name, None)
        for client in self._of(lambda session: session.node is node):
            client.socket.abort()  # RabbitMQ does not give a reason either
        for queue in tuple(node.queues.values()):
            node.remove_queue(queue, Loss.QUEUE_DELETED)
        return True

    def remove_user(self, name: str) -> bool:
        """Delete a user. Returns True if it existed."""
        if not self.users.remove(name):
            return False
        self.permissions.forget_user(name)
        self.user_limits.pop(name, None)
        words = f"CONNECTION_FORCED - user '{name}' is deleted"
        for client in self._of(lambda session: session.user == name):
            client.refuse(Refusal(320, words, connection=True))
        return True

    def _of(self, matches: Callable[[Session], bool]) -> list[Client]:
        return [client for client in self.clients if client.session and matches(client.session)]

    def rights(self, user: str, vhost: str) -> UserRights:
        """Return the permissions of a user in a virtual host."""
        return UserRights(self.permissions, user, vhost)

    def enter(self, client: Client) -> bool:
        """Add a client. Returns False if there are too many connections."""
        self.stir()
        if len(self.clients) >= self.limits.connections:
            return False
        self.clients.append(client)
        self.empty.clear()
        return True

    def leave(self, client: Client) -> None:
        self.stir()
        if client in self.clients:
            self.clients.remove(client)
        if not self.clients:
            self.empty.set()

    def may_open_channel(self) -> bool:
        """Return True if another channel may be opened."""
        sessions = (session for node in self.nodes for session in node.sessions)
        channels = sum(len(session.channels) for session in sessions)
        return channels < self.limits.all_channels

    def is_full(self) -> bool:
        """Return True if no more objects may be declared."""
        declared = sum(
            len(node.queues) + len(node.routing.exchanges) + node.routing.binding_count
            for node in self.nodes
        )
        return declared >= self.limits.declared

    def stir(self) -> None:
        """Record that a client has connected, sent data or disconnected."""
        self.stirred += 1

    def spoke(self) -> None:
        self.spoken += 1

    def is_held(self) -> bool:
        """Whether any client has an unsettled delivery."""
        return any(queue.unacked for node in self.nodes for queue in node.queues.values())

    def took(self, node: Node, size: int) -> None:
        """Record that a message of this size was published."""
        self._pressure.add(node, size)

    def is_receiving_much(self) -> bool:
        """Whether incomplete messages use a lot of memory."""
        unfinished = sum(client.core.unfinished_bytes for client in self.clients)
        return unfinished > self.limits.memory_bytes / 4

    def alarm(self, *, on: bool) -> None:
        """Block or unblock publishers, like a memory alarm does."""
        self._alarmed = on
        self.weigh()

    def weigh(self) -> None:
        """Check whether publishers have to be blocked or unblocked."""
        waited, self.blocked = self.blocked, self._alarmed or self._pressure.is_high
        if waited and not self.blocked:
            for client in tuple(self.clients):
                client.listen_again()

    def tidy_up(self) -> None:
        """Return memory to the system after a burst of messages. Called periodically."""
        if self._pressure.is_giving_back_worth_it():
            give_back_memory()

    def check_memory(self) -> None:
        """Measure the memory. Called periodically, and while there is an alarm."""
        self._pressure.measure()
        self.weigh()
