"""The broker under test with unique names, and time to answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from hopback.errors import BrokerError
from hopback.message import Message, Properties
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue, QueueType
from hopback.version import BrokerVersion
from tests.conformance.suite.row import Mismatch, equal, expect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.fields import FieldValue, Headers
    from hopback.message import Delivery
    from hopback.topology.model import Policy

_T = TypeVar("_T")


class Lacking(Exception):
    """The subject lacks a facility of the row, so the row is not tested."""


class PolicyControl(Protocol):
    """Sets policies on the broker under test. They apply when the call returns."""

    async def set_policy(self, policy: Policy) -> None:
        """Set the policy in the subject's virtual host. Replace one of the same name."""

    async def clear_policy(self, name: str) -> None:
        pass


class NodeControl(Protocol):
    """Controls the broker's node."""

    async def restart(self) -> None:
        """Stop and start the node. Durable objects survive."""

    async def raise_alarm(self) -> None:
        """Raise a resource alarm."""

    async def clear_alarm(self) -> None:
        """Clear the resource alarm."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Waiting times of the broker under test. The defaults are RabbitMQ's."""

    consumer_timeout: float = 1800.0
    consumer_check: float = 60.0
    """Interval of checks for consumer timeouts."""
    dead_letter_retry: float = 180.0
    quorum_tick: float = 5.0


@dataclass(frozen=True, slots=True)
class Facilities:
    """Facilities of the subject besides the broker port."""

    policies: PolicyControl | None = None
    node: NodeControl | None = None
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep
    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    """The broker's time of day, in seconds since 1970."""
    timings: Timings = Timings()
    user: str = "guest"
    """The user of the connections."""
    address: str | None = None
    """The broker's URL, for rows that write raw frames. None without a socket."""


@dataclass(slots=True)
class Subject:
    """The broker as seen by one row. Everything it declares has a unique name and is removed afterwards."""

    broker: Broker
    connection: Connection
    channel: Channel
    facilities: Facilities = field(default_factory=Facilities)
    _prefix: str = field(default_factory=lambda: f"conformance-{uuid.uuid4().hex[:8]}")
    _names: list[str] = field(default_factory=list)
    _exchanges: list[str] = field(default_factory=list)
    _policies: list[str] = field(default_factory=list)
    _connections: list[Connection] = field(default_factory=list)

    @classmethod
    async def set_up(cls, broker: Broker, facilities: Facilities | None = None) -> Subject:
        """Return a subject with a connection and a channel."""
        connection = await broker.connect("conformance")
        channel = await connection.open_channel()
        return cls(broker, connection, channel, facilities or Facilities())

    async def tear_down(self) -> None:
        """Remove everything the row declared, also after a failure."""
        with contextlib.suppress(BrokerError):
            await self.connection.close()
        for connection in self._connections:
            with contextlib.suppress(BrokerError):
                await connection.close()
        connection = await self.broker.connect("conformance")
        for name in self._policies:
            await self._policy_control().clear_policy(name)
        # On separate channels, because a refusal closes the channel.
        for name in self._names:
            with contextlib.suppress(BrokerError):
                channel = await connection.open_channel()
                await channel.delete_queue(name)
                await channel.close()
        for name in self._exchanges:
            with contextlib.suppress(BrokerError):
                channel = await connection.open_channel()
                await channel.delete_exchange(name)
                await channel.close()
        await connection.close()

    @property
    def version(self) -> BrokerVersion:
        """The version of the broker under test."""
        return self.connection.version

    @property
    def timings(self) -> Timings:
        """Waiting times of the broker under test."""
        return self.facilities.timings

    def since(self, values: Mapping[str, _T]) -> _T:
        """Return the value for the broker's version: the one of the newest version up to it."""
        known = {BrokerVersion.parse(text): value for text, value in values.items()}
        return known[max(version for version in known if version <= self.version)]

    async def pause(self, seconds: float) -> None:
        """Let time pass at the broker."""
        await self.facilities.pause(seconds)

    async def eventually(
        self, check: Callable[[], Awaitable[_T | None]], what: str, within: float = 10.0
    ) -> _T:
        """Call `check` until it returns a true value and return that. The AssertionError contains `what`."""
        deadline = self.facilities.now() + within
        while not (answer := await check()):
            expect(self.facilities.now() < deadline, f"within {within} s there is {what}")
            await self.pause(within / 500)
        return answer

    async def connect(self) -> Connection:
        connection = await self.broker.connect("conformance")
        self._connections.append(connection)
        return connection

    async def reconnect(self) -> None:
        """Replace the subject's connection and channel after a restart of the node."""
        with contextlib.suppress(BrokerError):
            await self.connection.close()
        self.connection = await self.broker.connect("conformance")
        self.channel = await self.connection.open_channel()

    async def open_channel(self) -> Channel:
        """Open another channel on the subject's connection."""
        return await self.connection.open_channel()

    async def end_of(self, channel: Channel) -> BrokerError | None:
        """Wait until the broker closes the channel and return the error."""
        try:
            async with asyncio.timeout(10):
                return await channel.wait_closed()
        except TimeoutError:
            raise Mismatch("expected the broker to close the channel, and it did not") from None

    def name(self, what: str = "queue") -> str:
        """Return a unique name. A queue of that name is removed afterwards."""
        name = f"{self._prefix}.{what}.{len(self._names) + len(self._exchanges)}"
        self._names.append(name)
        return name

    async def classic(self, arguments: Headers | None = None, *, name: str = "") -> str:
        """Declare a durable classic queue and return its name."""
        return await self.declare(Queue(name or self.name(), arguments=arguments or {}))

    async def quorum(self, arguments: Headers | None = None, *, name: str = "") -> str:
        """Declare a quorum queue and return its name."""
        queue = Queue(name or self.name(), QueueType.QUORUM, arguments=arguments or {})
        return await self.declare(queue)

    async def queue(
        self, kind: QueueType, arguments: Headers | None = None, *, name: str = ""
    ) -> str:
        """Declare a queue of that type and return its name."""
        return await self.declare(Queue(name or self.name(), kind, arguments=arguments or {}))

    async def declare(self, queue: Queue) -> str:
        """Declare the queue and return its name."""
        return (await self.channel.declare_queue(queue)).name

    async def exchange(
        self, kind: str = ExchangeType.DIRECT, arguments: Headers | None = None
    ) -> str:
        """Declare a durable exchange and return its name."""
        name = f"{self._prefix}.exchange.{len(self._names) + len(self._exchanges)}"
        self._exchanges.append(name)
        await self.channel.declare_exchange(Exchange(name, kind, arguments=arguments or {}))
        return name

    async def bind(
        self, source: str, destination: str, key: str = "", arguments: Headers | None = None
    ) -> None:
        """Bind a queue to an exchange."""
        await self.channel.bind(Binding(source, destination, key, arguments=arguments or {}))

    async def set_policy(self, policy: Policy) -> None:
        """Set a policy. Raises Lacking if the subject cannot."""
        control = self._policy_control()
        if policy.name not in self._policies:
            self._policies.append(policy.name)
        await control.set_policy(policy)

    async def clear_policy(self, name: str) -> None:
        """Remove a policy. Raises Lacking if the subject cannot."""
        await self._policy_control().clear_policy(name)
        self._policies.remove(name)

    def _policy_control(self) -> PolicyControl:
        if self.facilities.policies is None:
            raise Lacking("needs a way to set policies")
        return self.facilities.policies

    @property
    def node(self) -> NodeControl:
        """The broker's node. Raises Lacking if the subject cannot control it."""
        if self.facilities.node is None:
            raise Lacking("needs control of the broker's node")
        return self.facilities.node

    @property
    def address(self) -> str:
        """The broker's URL. Raises Lacking without a socket."""
        if self.facilities.address is None:
            raise Lacking("needs a broker on a socket")
        return self.facilities.address

    async def put(
        self,
        queue: str,
        *bodies: str,
        exchange: str = "",
        headers: Headers | None = None,
        **properties: FieldValue,
    ) -> None:
        """Publish messages to a queue, or to an exchange with that key, and wait for each confirm."""
        for body in bodies or ("m",):
            content = Properties(headers=headers or {}, delivery_mode=2, **properties)  # type: ignore[arg-type]
            await self.channel.publish(Message(exchange, queue, body.encode(), content))

    async def take(
        self, queue: str, *, channel: Channel | None = None, within: float = 10.0
    ) -> Delivery:
        """Wait for a message, get it and leave it unacked."""
        taker = channel or self.channel
        return await self.eventually(lambda: taker.get(queue), f"a message in {queue}", within)

    async def take_done(self, queue: str, within: float = 10.0) -> Delivery:
        """Wait for a message, get it and ack it."""
        delivery = await self.take(queue, within=within)
        self.channel.ack(delivery.tag)
        return delivery

    async def count(self, queue: str) -> int:
        """Return the number of ready messages, by passive declare on a separate channel."""
        channel = await self.connection.open_channel()
        state = await channel.declare_queue(Queue(queue), passive=True)
        await channel.close()
        return state.messages

    async def holds(self, queue: str, count: int, within: float = 10.0) -> None:
        """Wait until the queue has exactly `count` ready messages."""

        async def check() -> bool:
            return await self.count(queue) == count

        await self.eventually(check, f"{count} ready in {queue}", within)

    async def stays(self, queue: str, count: int, seconds: float = 0.5) -> None:
        """Check after a while that the queue still has exactly `count` ready messages."""
        await self.pause(seconds)
        equal(f"ready in {queue}", await self.count(queue), count)

    async def bodies(self, queue: str) -> list[str]:
        """Get all ready messages, ack them, and return their bodies in order."""
        found: list[str] = []
        while (delivery := await self.channel.get(queue)) is not None:
            self.channel.ack(delivery.tag)
            found.append(delivery.body.decode())
        return found

    async def exists(self, queue: str) -> bool:
        """Return whether the queue exists."""
        channel = await self.connection.open_channel()
        try:
            await channel.declare_queue(Queue(queue), passive=True)
        except BrokerError:
            return False
        await channel.close()
        return True

    async def error_of(self, attempt: Callable[[Channel], Awaitable[object]]) -> BrokerError:
        """Return the error of an attempt on a new channel. AssertionError if it succeeds."""
        channel = await self.connection.open_channel()
        try:
            await attempt(channel)
        except BrokerError as error:
            return error
        raise Mismatch("expected the broker to refuse, and it did not")
