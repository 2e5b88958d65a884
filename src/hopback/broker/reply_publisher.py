"""Publish direct replies on a separate connection.

The address of a direct reply (`amq.rabbitmq.reply-to.…`) comes from the client that sent the
request. If it is forged, RabbitMQ 3.10 and 4.0 close the whole connection (541). For this reason,
addresses are validated and replies are not sent on the same connection as other messages. While the
first reply to an address is in flight, no other replies are sent, so a forged address does not
affect them. It is refused from then on, and the connection is reopened with a constant delay.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING, Protocol

from hopback.broker.port import REPLY_TO
from hopback.errors import ConnectionLost, InvalidMessage, PublishInterrupted

if TYPE_CHECKING:
    from hopback.message import Message

DIRECT_REPLY = f"{REPLY_TO}."
"""The routing key of a direct reply starts with this."""

_VERSION, _NEW_PID, _PID = 131, ord("X"), ord("g")
_PID_BYTES = {_NEW_PID: 12, _PID: 9}
"""The number of bytes that follow the node name in Erlang's external format of a process id."""
_ATOM_LENGTH_BYTES = {ord("w"): 1, ord("s"): 1, ord("v"): 2, ord("d"): 2}
"""The size of an atom's length in bytes."""
_ANSWERED = 5_000
"""Number of addresses that were replied to before. If there are more, all of them have to be proven
again.
"""
_FORGED = 5_000
"""Number of forged addresses to remember. If there are more, all of them are forgotten."""
_INTERNAL_ERROR = 541  # RabbitMQ's reply code for unexpected errors


def is_direct_reply(message: Message) -> bool:
    """Return True if this is a direct reply."""
    return not message.exchange and message.routing_key.startswith(DIRECT_REPLY)


def is_forged_address(error: BaseException | None) -> bool:
    """Return True if RabbitMQ has closed the connection because of a forged address."""
    return isinstance(error, ConnectionLost) and error.code == _INTERNAL_ERROR


def is_reply_address(address: str) -> bool:
    """Return True if RabbitMQ can parse the address (`amq.rabbitmq.reply-to.PID.KEY`).

    If there is no second dot, the address is harmless, because RabbitMQ drops the reply. The
    embedded broker uses addresses of this form.
    """
    parts = address.removeprefix(DIRECT_REPLY).split(".")
    if len(parts) == 1:
        return True
    if len(parts) != 2:
        return False
    try:
        pid = base64.b64decode(parts[0], validate=True)
        base64.b64decode(parts[1], validate=True)
    except (binascii.Error, ValueError):
        return False
    return _is_pid(pid)


def _is_pid(raw: bytes) -> bool:
    """Return True if the bytes are exactly one process id."""
    if len(raw) < 6 or raw[0] != _VERSION or raw[1] not in _PID_BYTES:
        return False
    length_bytes = _ATOM_LENGTH_BYTES.get(raw[2])
    if length_bytes is None:
        return False
    node_at = 3 + length_bytes
    length = int.from_bytes(raw[3:node_at], "big")
    node = raw[node_at : node_at + length]
    return b"@" in node and len(raw) == node_at + length + _PID_BYTES[raw[1]]


class _ReplyConnection(Protocol):
    async def send(
        self, message: Message, *, mandatory: bool = True, ended: asyncio.Event | None = None
    ) -> None: ...

    def start(self) -> None: ...

    async def close(self) -> None: ...


class ReplyPublisher:
    """Sends direct replies. `publisher` has its own connection, which is opened for the first
    reply.
    """

    def __init__(self, publisher: _ReplyConnection) -> None:
        self._publisher = publisher
        self._answered: set[str] = set()
        self._forged: set[str] = set()
        self._alone = asyncio.Lock()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def send(self, message: Message, ended: asyncio.Event | None) -> None:
        """Send a reply. Raises InvalidMessage if no broker could have created the address."""
        address = message.routing_key
        if not is_reply_address(address):
            raise InvalidMessage(
                f"message not sent: expected a direct reply address of RabbitMQ's form, got {address!r}"
            )
        if address in self._forged:
            raise InvalidMessage(
                f"message not sent: RabbitMQ closed the connection of an earlier reply to {address!r}"
            )
        self._publisher.start()
        if address in self._answered:
            if self._alone.locked():
                async with self._alone:
                    pass  # another reply to a new address is in flight
            await self._send(message, ended)
            return
        async with self._alone:
            await self._idle.wait()
            try:
                await self._send(message, ended)
            except PublishInterrupted as error:
                if is_forged_address(error.__cause__):
                    if len(self._forged) >= _FORGED:
                        self._forged.clear()
                    self._forged.add(address)
                raise
            if len(self._answered) >= _ANSWERED:
                self._answered.clear()
            self._answered.add(address)

    async def _send(self, message: Message, ended: asyncio.Event | None) -> None:
        self._in_flight += 1
        self._idle.clear()
        try:
            # RabbitMQ 3.10 and 4.0 return direct replies as unroutable although they deliver them.
            await self._publisher.send(message, mandatory=False, ended=ended)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def close(self) -> None:
        """Close the connection. Can be called more than once."""
        await self._publisher.close()
