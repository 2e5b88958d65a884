"""The broker under test as rows see it: names of its own, and time to answer."""

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
from tests.conformance.suite.row import Mismatch, equal, that

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hopback.broker.port import Broker, Channel, Connection
    from hopback.fields import FieldValue, Headers
    from hopback.message import Delivery
    from hopback.topology.model import Policy

_T = TypeVar("_T")


class Lacking(Exception):
    """The subject has not what the row needs; the row is neither shown nor refuted."""


class PolicyControl(Protocol):
    """Sets policies on the broker under test; they hold when the call returns."""

    async def set_policy(self, policy: Policy) -> None:
        """Set it in the virtual host of the subject, in place of one of the same name."""

    async def clear_policy(self, name: str) -> None:
        """Remove it."""


class NodeControl(Protocol):
    """Has the broker's node in hand."""

    async def restart(self) -> None:
        """End the node and start it again; what is durable survives."""

    async def raise_alarm(self) -> None:
        """Let it run out of a resource."""

    async def clear_alarm(self) -> None:
        """Give the resource back."""


@dataclass(frozen=True, slots=True)
class Timings:
    """How long the broker under test waits; the defaults are RabbitMQ's own."""

    consumer_timeout: float = 1800.0
    consumer_check: float = 60.0
    """How often it looks for consumers that have timed out."""
    dead_letter_retry: float = 180.0
    quorum_tick: float = 5.0


@dataclass(frozen=True, slots=True)
class Facilities:
    """What the subject may use beside the broker port."""

    policies: PolicyControl | None = None
    node: NodeControl | None = None
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep
    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    """What the broker takes for the time of day, in seconds since 1970."""
    timings: Timings = Timings()
    user: str = "guest"
    """Whom the broker takes us for."""
    address: str | None = None
    """Where the broker is, for rows that write frames of their own; None: it is not on a socket."""


@dataclass(slots=True)
class Subject:
    """The broker as one row sees it: everything it declares has a name of its own and is removed after."""

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
        """A subject with a connection and a channel."""
        connection = await broker.connect("conformance")
        channel = await connection.open_channel()
        return cls(broker, connection, channel, facilities or Facilities())

    async def tear_down(self) -> None:
        """Remove everything the row made, whatever it has broken."""
        with contextlib.suppress(BrokerError):
            await self.connection.close()
        for connection in self._connections:
            with contextlib.suppress(BrokerError):
                await connection.close()
        connection = await self.broker.connect("conformance")
        for name in self._policies:
            await self._policy_control().clear_policy(name)
        # Each on a channel of its own: a refusal closes it.
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
        """How long the broker under test waits."""
        return self.facilities.timings

    def since(self, values: Mapping[str, _T]) -> _T:
        """The value for the broker's version: that of the newest version named up to it."""
        known = {BrokerVersion.parse(text): value for text, value in values.items()}
        return known[max(version for version in known if version <= self.version)]

    async def pause(self, seconds: float) -> None:
        """Let time pass at the broker."""
        await self.facilities.pause(seconds)

    async def eventually(
        self, check: Callable[[], Awaitable[_T | None]], what: str, within: float = 10.0
    ) -> _T:
        """Ask until the answer is true, and return it; AssertionError names `what` after that."""
        deadline = self.facilities.now() + within
        while not (answer := await check()):
            that(self.facilities.now() < deadline, f"within {within} s there is {what}")
            await self.pause(within / 500)
        return answer

    async def connect(self) -> Connection:
        connection = await self.broker.connect("conformance")
        self._connections.append(connection)
        return connection

    async def reconnect(self) -> None:
        """Replace the subject's own connection and channel after the node was away."""
        with contextlib.suppress(BrokerError):
            await self.connection.close()
        self.connection = await self.broker.connect("conformance")
        self.channel = await self.connection.open_channel()

    async def open_channel(self) -> Channel:
        """A further channel of the subject's connection."""
        return await self.connection.open_channel()

    async def end_of(self, channel: Channel) -> BrokerError | None:
        """Why the channel ends, as it must."""
        try:
            async with asyncio.timeout(10):
                return await channel.wait_closed()
        except TimeoutError:
            raise Mismatch("expected the broker to end the channel, and it did not") from None

    def name(self, what: str = "queue") -> str:
        """A name that nobody else uses; a queue of that name is removed afterwards."""
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
        """Set a policy; Lacking where the subject cannot."""
        control = self._policy_control()
        if policy.name not in self._policies:
            self._policies.append(policy.name)
        await control.set_policy(policy)

    async def clear_policy(self, name: str) -> None:
        """Remove a policy; Lacking where the subject cannot."""
        await self._policy_control().clear_policy(name)
        self._policies.remove(name)

    def _policy_control(self) -> PolicyControl:
        if self.facilities.policies is None:
            raise Lacking("needs a way to set policies")
        return self.facilities.policies

    @property
    def node(self) -> NodeControl:
        """The broker's node; Lacking where the subject has it not in hand."""
        if self.facilities.node is None:
            raise Lacking("needs the broker's node in hand")
        return self.facilities.node

    @property
    def address(self) -> str:
        """Where the broker is; Lacking where it is not on a socket."""
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
        """Publish messages to a queue, or to an exchange with that key, confirmed one by one."""
        for body in bodies or ("m",):
            content = Properties(headers=headers or {}, delivery_mode=2, **properties)  # type: ignore[arg-type]
            await self.channel.publish(Message(exchange, queue, body.encode(), content))

    async def take(
        self, queue: str, *, channel: Channel | None = None, within: float = 10.0
    ) -> Delivery:
        """Get one message, unsettled, as soon as there is one."""
        taker = channel or self.channel
        return await self.eventually(lambda: taker.get(queue), f"a message in {queue}", within)

    async def take_done(self, queue: str, within: float = 10.0) -> Delivery:
        """Get one message as soon as there is one, and ack it."""
        delivery = await self.take(queue, within=within)
        self.channel.ack(delivery.tag)
        return delivery

    async def count(self, queue: str) -> int:
        """How many messages are ready, by passive declare on a channel of its own."""
        channel = await self.connection.open_channel()
        state = await channel.declare_queue(Queue(queue), passive=True)
        await channel.close()
        return state.messages

    async def holds(self, queue: str, count: int, within: float = 10.0) -> None:
        """Wait until the queue has exactly so many ready messages."""

        async def check() -> bool:
            return await self.count(queue) == count

        await self.eventually(check, f"{count} ready in {queue}", within)

    async def stays(self, queue: str, count: int, seconds: float = 0.5) -> None:
        """Make sure that the queue still has exactly so many ready messages after a while."""
        await self.pause(seconds)
        equal(f"ready in {queue}", await self.count(queue), count)

    async def bodies(self, queue: str) -> list[str]:
        """Take everything that is ready, ack it, and return the bodies in order."""
        found: list[str] = []
        while (delivery := await self.channel.get(queue)) is not None:
            self.channel.ack(delivery.tag)
            found.append(delivery.body.decode())
        return found

    async def exists(self, queue: str) -> bool:
        """Whether there is a queue of that name."""
        channel = await self.connection.open_channel()
        try:
            await channel.declare_queue(Queue(queue), passive=True)
        except BrokerError:
            return False
        await channel.close()
        return True

    async def refused(self, attempt: Callable[[Channel], Awaitable[object]]) -> BrokerError:
        """What a fresh channel says to an attempt that must fail; AssertionError if it does not."""
        channel = await self.connection.open_channel()
        try:
            await attempt(channel)
        except BrokerError as error:
            return error
        raise Mismatch("expected the broker to refuse, and it did not")
