"""A client and a server connection that talk to each other, without a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopback.wire import Credentials, Limits, MethodReceived, Side, WireConnection
from hopback.wire.handshake import ClientHandshake, ServerHandshake, Tuning

if TYPE_CHECKING:
    from hopback.wire import Event

__all__ = ["Pair", "open_pair"]


class Pair:
    """Two connections. `pump` transfers all bytes, in chunks of `step` bytes if given."""

    def __init__(self, *, step: int | None = None, limits: Limits | None = None) -> None:
        self.client = WireConnection(Side.CLIENT, limits)
        self.server = WireConnection(Side.SERVER, limits)
        self.step = step
        self.seen_by_client: list[Event] = []
        self.seen_by_server: list[Event] = []

    def pump(self) -> None:
        """Transfer bytes until neither side sends any."""
        while True:
            forth, back = self.client.take(), self.server.take()
            if not forth and not back:
                return
            self.seen_by_server += self._carry(forth, self.server)
            self.seen_by_client += self._carry(back, self.client)

    def _carry(self, data: bytes, to: WireConnection) -> list[Event]:
        step = self.step or len(data) or 1
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        heard: list[Event] = []
        for piece in pieces:
            heard += to.receive(piece)
            while to.unread:
                heard += to.receive(b"")
        return heard

    def heard_by_server(self) -> list[tuple[int, str, dict[str, Any]]]:
        """The control methods that reached the server since the last call."""
        return _methods(self.seen_by_server)

    def heard_by_client(self) -> list[tuple[int, str, dict[str, Any]]]:
        """The control methods that reached the client since the last call."""
        return _methods(self.seen_by_client)

    def shake_hands(self, client: ClientHandshake, server: ServerHandshake) -> None:
        """Run both halves of the handshake to their end."""
        while True:
            self.pump()
            heard, said = self.seen_by_server[:], self.seen_by_client[:]
            self.seen_by_server.clear()
            self.seen_by_client.clear()
            if not heard and not said:
                return
            for event in heard:
                server.on_event(event)
            for event in said:
                client.on_event(event)


def _methods(events: list[Event]) -> list[tuple[int, str, dict[str, Any]]]:
    found = [(e.channel, e.name, e.arguments) for e in events if isinstance(e, MethodReceived)]
    events.clear()
    return found


def open_pair(*, step: int | None = None, limits: Limits | None = None, channels: int = 1) -> Pair:
    """A pair after the handshake, with channels 1 to `channels` open."""
    pair = Pair(step=step, limits=limits)
    pair.shake_hands(
        ClientHandshake(pair.client, Credentials(), tuning=Tuning()),
        ServerHandshake(pair.server, lambda mechanism, response: "guest"),
    )
    for number in range(1, channels + 1):
        pair.client.send(number, "channel.open")
        pair.pump()
        pair.server.send(number, "channel.open-ok")
        pair.pump()
    pair.heard_by_client(), pair.heard_by_server()
    return pair
