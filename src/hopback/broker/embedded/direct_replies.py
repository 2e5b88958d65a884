"""Direct reply-to: answers that pass no queue, from a client that replies to the channel that asked.

A client consumes from `amq.rabbitmq.reply-to`; the requests it publishes with that `reply_to` leave with a
name that only its channel has, and what is published to that name is handed to it at once. The channels are
those of clients in this process, or of clients of the server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from hopback.broker.embedded.refusal import precondition_failed
from hopback.broker.port import REPLY_TO

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.message import Properties

ChannelT = TypeVar("ChannelT")


@dataclass(frozen=True, slots=True, eq=False)
class Asker(Generic[ChannelT]):
    """A channel that waits for replies: the name its requests carry, and its consumer's tag."""

    channel: ChannelT
    name: str
    tag: str


class DirectReplies(Generic[ChannelT]):
    """All who wait for direct replies. What RabbitMQ refuses is a Refusal, in its words."""

    def __init__(self) -> None:
        self._by_name: dict[str, Asker[ChannelT]] = {}
        self._by_channel: dict[ChannelT, Asker[ChannelT]] = {}

    def begin(
        self, channel: ChannelT, made_up: Callable[[str], str], tag: str, *, no_ack: bool
    ) -> str:
        """A channel consumes; its tag, which `made_up` makes with the name if the client gave none."""
        if channel in self._by_channel:
            raise precondition_failed("reply consumer already set")
        if not no_ack:
            raise precondition_failed("reply consumer cannot acknowledge")
        asker = Asker(channel, made_up(f"{REPLY_TO}."), tag or made_up("amq.ctag-"))
        self._by_name[asker.name] = self._by_channel[channel] = asker
        return asker.tag

    def end(self, channel: ChannelT, tag: str | None = None) -> bool:
        """The channel is gone, or cancels this consumer; whether it had one."""
        asker = self._by_channel.get(channel)
        if asker is None or tag not in (None, asker.tag):
            return False
        del self._by_channel[channel]
        del self._by_name[asker.name]
        return True

    def asker(self, name: str) -> Asker[ChannelT] | None:
        """Who waits for replies to that name."""
        return self._by_name.get(name)

    def addressed(self, channel: ChannelT, properties: Properties) -> Properties:
        """The properties of a request, with the name to which the reply comes back; others as they are."""
        if properties.reply_to != REPLY_TO:
            return properties
        asker = self._by_channel.get(channel)
        if asker is None:
            raise precondition_failed("fast reply consumer does not exist")
        return replace(properties, reply_to=asker.name)
