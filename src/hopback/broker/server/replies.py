"""Direct reply-to: answers that pass no queue, from whoever replies to the channel that asked.

A client consumes from `amq.rabbitmq.reply-to`; the requests it publishes with that `reply_to` leave
with a name that only its channel has, and what is published to that name is handed to it at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hopback.broker.embedded.refusal import precondition_failed

if TYPE_CHECKING:
    from hopback.broker.server.channel import ServerChannel
    from hopback.message import Properties

__all__ = ["REPLY_TO", "Asker", "Replies"]

REPLY_TO = "amq.rabbitmq.reply-to"


@dataclass(frozen=True, slots=True, eq=False)
class Asker:
    """A channel that waits for replies: the name its requests carry, and its consumer's tag."""

    channel: ServerChannel
    name: str
    tag: str


class Replies:
    """All who wait for direct replies."""

    def __init__(self) -> None:
        self._by_name: dict[str, Asker] = {}
        self._by_channel: dict[ServerChannel, Asker] = {}

    def begin(self, channel: ServerChannel, tag: str, *, no_ack: bool) -> str:
        """A channel consumes; its tag. A refusal as RabbitMQ says it."""
        if channel in self._by_channel:
            channel.refuse(precondition_failed("reply consumer already set"))
        if not no_ack:
            channel.refuse(precondition_failed("reply consumer cannot acknowledge"))
        made_up = channel.state.node.made_up
        asker = Asker(channel, made_up(f"{REPLY_TO}."), tag or made_up("amq.ctag-"))
        self._by_name[asker.name] = self._by_channel[channel] = asker
        return asker.tag

    def end(self, channel: ServerChannel, tag: str | None = None) -> bool:
        """The channel is gone, or cancels this consumer; whether it had one."""
        asker = self._by_channel.get(channel)
        if asker is None or tag not in (None, asker.tag):
            return False
        del self._by_channel[channel]
        del self._by_name[asker.name]
        return True

    def asker(self, name: str) -> Asker | None:
        """Who waits for replies to that name."""
        return self._by_name.get(name)

    def addressed(self, channel: ServerChannel, properties: Properties) -> Properties:
        """The properties of a request, with the name to which the reply comes back."""
        if properties.reply_to != REPLY_TO:
            return properties
        asker = self._by_channel.get(channel)
        if asker is None:
            channel.refuse(precondition_failed("fast reply consumer does not exist"))
            return properties
        return replace(properties, reply_to=asker.name)
