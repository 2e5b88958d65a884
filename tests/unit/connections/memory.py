"""An in-memory RabbitMQ built from the server role of `hopback.wire`.

It has no socket and no timing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hopback.broker.rabbitmq import RabbitConnection
from hopback.message import Properties
from hopback.wire import (
    Address,
    Event,
    HeaderReceived,
    MethodReceived,
    Published,
    SettlementReceived,
    Side,
    WireConnection,
)
from hopback.wire.frames import METHOD, frame
from hopback.wire.handshake import ServerHandshake
from hopback.wire.methods import METHODS, encode_arguments
from hopback.wire.properties import encode_properties

if TYPE_CHECKING:
    from hopback.wire.transport import Wire

__all__ = ["MemoryServer", "connect"]

_ANSWERS: dict[str, str] = {
    "channel.open": "channel.open-ok",
    "confirm.select": "confirm.select-ok",
    "basic.qos": "basic.qos-ok",
    "basic.recover": "basic.recover-ok",
    "queue.declare": "queue.declare-ok",
}


class MemoryServer(asyncio.Transport):
    """A server that answers requests at once and records them. It is also the client's socket."""

    def __init__(self) -> None:
        super().__init__()
        self.core = WireConnection(Side.SERVER)
        self.heard: list[Event] = []
        self.writes = 0
        self.silent_on: set[str] = set()
        """Requests that are never answered."""
        self._protocol: Wire | None = None
        self._handshake = ServerHandshake(
            self.core, lambda mechanism, response: "guest", properties={"version": "4.3.6"}
        )

    def attach(self, protocol: Wire) -> None:
        """Be the socket of this protocol."""
        self._protocol = protocol
        protocol.connection_made(self)

    # --- called by the client

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes from the client: understood now, answered in the loop's next turn."""
        self.writes += 1
        received = bytes(data)
        while True:
            for event in self.core.receive(received):
                self._on_event(event)
            if not self.core.unread:
                break
            received = b""
        asyncio.get_running_loop().call_soon(self.flush)

    def close(self) -> None:
        """The client hangs up."""
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            asyncio.get_running_loop().call_soon(protocol.connection_lost, None)

    def abort(self) -> None:
        """The client hangs up at once."""
        self.close()

    # --- called by tests

    def flush(self) -> None:
        """Bytes to the client."""
        data = self.core.take()
        if data and self._protocol is not None:
            self._protocol.data_received(data)

    def send(self, number: int, name: str, **arguments: Any) -> None:
        """Send a method now."""
        self.core.send(number, name, **arguments)
        self.flush()

    def content(
        self,
        number: int,
        name: str,
        body: bytes = b"",
        properties: Properties | None = None,
        **arguments: Any,
    ) -> None:
        """Send a message now."""
        method = frame(METHOD, number, encode_arguments(METHODS[name], arguments))
        raw = encode_properties(properties or Properties())
        self.core.content(number, method, raw, body)
        self.flush()

    def deliver(self, tag: int, consumer: str, body: bytes = b"", number: int = 1) -> None:
        """Deliver a message, now."""
        self.content(number, "basic.deliver", body, consumer_tag=consumer, delivery_tag=tag)

    def break_line(self, error: Exception | None = None) -> None:
        """The network fails."""
        protocol, self._protocol = self._protocol, None
        assert protocol is not None
        protocol.connection_lost(error)

    def settlements(self) -> list[tuple[str, int, bool, bool]]:
        """Acks, nacks and rejects since the last call: name, tag, multiple, requeue."""
        found = [event for event in self.heard if isinstance(event, SettlementReceived)]
        self.heard = [event for event in self.heard if not isinstance(event, SettlementReceived)]
        return [(event.name, event.tag, event.multiple, event.requeue) for event in found]

    def published(self) -> list[Published]:
        """All messages published so far."""
        return [event for event in self.heard if isinstance(event, Published)]

    def asked(self) -> list[tuple[str, dict[str, Any]]]:
        """All requests so far."""
        return [(e.name, e.arguments) for e in self.heard if isinstance(e, MethodReceived)]

    def _on_event(self, event: Event) -> None:
        if isinstance(event, HeaderReceived) or event.channel == 0:
            self._handshake.on_event(event)
            return
        self.heard.append(event)
        if (
            isinstance(event, MethodReceived)
            and not event.arguments.get("nowait")
            and event.name not in self.silent_on
        ):
            self._answer(event)

    def _answer(self, event: MethodReceived) -> None:
        if event.name in _ANSWERS:
            self.core.send(event.channel, _ANSWERS[event.name])
        elif event.name in ("basic.consume", "basic.cancel"):
            tag = event.arguments["consumer_tag"]
            self.core.send(event.channel, f"{event.name}-ok", consumer_tag=tag)


async def connect(
    *, window: int = 100, confirm_timeout: float = 30.0
) -> tuple[MemoryServer, RabbitConnection]:
    """Connect a client to a new in-memory server."""
    server = MemoryServer()
    connection = RabbitConnection(
        Address(heartbeat=0), "test", window=window, confirm_timeout=confirm_timeout
    )
    server.attach(connection.wire)
    await connection.opened
    return server, connection
