"""Direct reply-to for clients in this process: answers pass no queue, but go to the channel that asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.broker.embedded.refusal import precondition_failed
from hopback.broker.port import REPLY_TO

if TYPE_CHECKING:
    from hopback.broker.embedded.channel import EmbeddedChannel
    from hopback.broker.embedded.node import Node
    from hopback.message import Message

__all__ = ["DirectReplies"]


class DirectReplies:
    """Which channels wait for replies, and under which name."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_name: dict[str, EmbeddedChannel] = {}
        self._names: dict[EmbeddedChannel, str] = {}

    def begin(self, channel: EmbeddedChannel, *, no_ack: bool) -> None:
        """A channel consumes from `amq.rabbitmq.reply-to`; Refusal as RabbitMQ says it."""
        if channel in self._names:
            raise precondition_failed("reply consumer already set")
        if not no_ack:
            raise precondition_failed("reply consumer cannot acknowledge")
        name = self._node.made_up(f"{REPLY_TO}.")
        self._names[channel] = name
        self._by_name[name] = channel

    def end(self, channel: EmbeddedChannel) -> None:
        """The channel is gone, or consumes no longer."""
        name = self._names.pop(channel, None)
        if name is not None:
            del self._by_name[name]

    def asker(self, name: str) -> EmbeddedChannel | None:
        """Who waits for replies to that name."""
        return self._by_name.get(name)

    def addressed(self, channel: EmbeddedChannel, message: Message) -> Message:
        """A request with the name to which its reply comes back; others as they are."""
        if message.properties.reply_to != REPLY_TO:
            return message
        name = self._names.get(channel)
        if name is None:
            raise precondition_failed("fast reply consumer does not exist")
        return replace(message, properties=replace(message.properties, reply_to=name))
