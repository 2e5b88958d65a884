"""A node on a virtual clock, and clients that record its answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hopback.broker.embedded import Event, EventKind, Node, Refusal, advance
from hopback.broker.embedded.snapshot import QueueSnapshot, snapshot
from hopback.clock import ManualClock
from hopback.message import Message, Properties
from hopback.topology.model import Binding, Exchange, Queue, QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.broker.embedded.stored import UnackedDelivery
    from hopback.fields import FieldValue, Headers

__all__ = ["EVERY_VERSION", "START", "Client", "Setup", "deaths", "pass_time", "to"]

START = 1_700_000_000.0
EVERY_VERSION = ("3.10.8", "3.12", "3.13", "3.13.3", "4.0.5", "4.3.6")


class Setup:
    """A node of one version, its clock and its journal."""

    def __init__(self, version: str = "4.0.5", *, consumer_timeout: float | None = 1800.0) -> None:
        self.clock = ManualClock(START)
        self.node = Node(
            BrokerVersion.parse(version), self.clock, consumer_timeout=consumer_timeout
        )
        self.events: list[Event] = []
        self.node.listen(self.events.append)

    def wait(self, seconds: float) -> None:
        """Let time pass, from deadline to deadline."""
        advance(self.node, self.clock, self.clock.now() + seconds)

    def queue(self, name: str) -> QueueSnapshot:
        """The queue as it is now."""
        return snapshot(self.node).queue(name)

    def ready(self, name: str) -> list[str]:
        """The bodies that are ready, in the order in which they would be handed out."""
        return [message.body.decode() for message in self.queue(name).ready]

    def lost(self) -> list[str]:
        """Why messages were dropped, one by one."""
        return [event.reason for event in self.events if event.kind is EventKind.DROPPED]


class Client:
    """One connection with one channel that records deliveries, cancellations and the close."""

    def __init__(self, setup: Setup, *, user: str = "guest") -> None:
        self.setup = setup
        self.session = setup.node.connect("test", user)
        self.deliveries: list[UnackedDelivery] = []
        self.cancellations: list[str] = []
        self.refusal: Refusal | None = None
        self.channel = self.session.open_channel(self)

    def deliver(self, taken: UnackedDelivery) -> None:
        """The node's sink."""
        self.deliveries.append(taken)

    def on_cancel(self, tag: str) -> None:
        """The node's sink."""
        self.cancellations.append(tag)

    def on_close(self, refusal: Refusal) -> None:
        """The node's sink."""
        self.refusal = refusal

    @property
    def bodies(self) -> list[str]:
        """The bodies delivered so far."""
        return [taken.body.decode() for taken in self.deliveries]

    def classic(self, name: str, arguments: Headers | None = None, *, durable: bool = True) -> str:
        """Declare a classic queue."""
        return self.declare(Queue(name, durable=durable, arguments=arguments or {}))

    def quorum(self, name: str, arguments: Headers | None = None) -> str:
        """Declare a quorum queue."""
        return self.declare(Queue(name, QueueType.QUORUM, arguments=arguments or {}))

    def declare(self, queue: Queue) -> str:
        """Declare a queue and return its name."""
        return self.channel.declare_queue(queue).name

    def exchange(self, name: str, kind: str = "direct", arguments: Headers | None = None) -> None:
        """Declare an exchange."""
        self.channel.declare_exchange(Exchange(name, kind, arguments=arguments or {}))

    def bind(self, source: str, destination: str, key: str = "") -> None:
        """Bind a queue to an exchange."""
        self.channel.bind(Binding(source, destination, key))

    def put(
        self,
        key: str,
        *bodies: str,
        exchange: str = "",
        headers: Headers | None = None,
        mandatory: bool = True,
        **properties: FieldValue,
    ) -> list[EventKind]:
        """Publish messages and return their fates."""
        content = Properties(headers=headers or {}, **properties)  # type: ignore[arg-type]
        return [
            self.channel.publish(
                Message(exchange, key, body.encode(), content), mandatory=mandatory
            )
            for body in bodies or ("m",)
        ]

    def get(self, queue: str) -> UnackedDelivery:
        """Take one message that must be there."""
        taken = self.channel.get(queue)
        assert taken is not None, f"no ready message in {queue}"
        return taken

    def drain(self, queue: str) -> list[UnackedDelivery]:
        """Take and ack everything that is ready."""
        found = []
        while (taken := self.channel.get(queue)) is not None:
            self.channel.ack(taken.tag)
            found.append(taken)
        return found

    def again(self) -> Client:
        """Another connection to the same node."""
        return Client(self.setup)


def to(queue: str, **more: FieldValue) -> dict[str, FieldValue]:
    """Arguments that dead-letter to `queue`, with more of them by their names without `x-`."""
    arguments = {f"x-{name.replace('_', '-')}": value for name, value in more.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, **arguments}


def deaths(taken: UnackedDelivery) -> list[dict[str, FieldValue]]:
    """The `x-death` header of a delivery."""
    found = taken.properties.headers.get("x-death")
    assert isinstance(found, list)
    return [dict(table) for table in found]


async def pass_time(seconds: float) -> None:
    """Let virtual time pass on the running loop."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    loop.call_later(seconds, passed.set_result, None)
    await passed
