"""Direct reply-to, which delivers replies to a channel without using a queue.

A client consumes from `amq.rabbitmq.reply-to`. When it publishes a request with this `reply_to`,
the name is replaced with one that is unique to the channel. Messages published to the unique name
are delivered to the channel right away. Channels can belong to clients in this process or to
clients of the server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from hopback.broker.embedded.refusal import internal_error, precondition_failed
from hopback.broker.port import REPLY_TO

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.profile import Profile
    from hopback.message import Properties

ChannelT = TypeVar("ChannelT")


@dataclass(frozen=True, slots=True, eq=False)
class Asker(Generic[ChannelT]):
    """A channel that is waiting for replies, with its unique name and consumer tag."""

    channel: ChannelT
    name: str
    tag: str


def check_reply_address(name: str, profile: Profile) -> None:
    """Refuse a routing key of the form `amq.rabbitmq.reply-to.PID.KEY`.

    Only RabbitMQ creates such addresses, so the process id cannot be known to this broker.
    """
    if not (profile.forged_reply_ends_connection and name.startswith(f"{REPLY_TO}.")):
        return
    if len([token for token in name.removeprefix(REPLY_TO).split(".") if token]) == 2:
        raise internal_error()


class DirectReplies(Generic[ChannelT]):
    """The channels that are waiting for direct replies. Errors have the same text as RabbitMQ's."""

    def __init__(self) -> None:
        self._by_name: dict[str, Asker[ChannelT]] = {}
        self._by_channel: dict[ChannelT, Asker[ChannelT]] = {}

    def begin(
        self, channel: ChannelT, made_up: Callable[[str], str], tag: str, *, no_ack: bool
    ) -> str:
        """Add a channel and return its consumer tag. `made_up` generates the name, and the tag if
        there is none.
        """
        if channel in self._by_channel:
            raise precondition_failed("reply consumer already set")
        if not no_ack:
            raise precondition_failed("reply consumer cannot acknowledge")
        asker = Asker(channel, made_up(f"{REPLY_TO}."), tag or made_up("amq.ctag-"))
        self._by_name[asker.name] = self._by_channel[channel] = asker
        return asker.tag

    def end(self, channel: ChannelT, tag: str | None = None) -> bool:
        """Remove a channel, or only this consumer. Returns True if it was found."""
        asker = self._by_channel.get(channel)
        if asker is None or tag not in (None, asker.tag):
            return False
        del self._by_channel[channel]
        del self._by_name[asker.name]
        return True

    def asker(self, name: str) -> Asker[ChannelT] | None:
        """Find the channel for a unique name."""
        return self._by_name.get(name)

    def set_reply_address(self, channel: ChannelT, properties: Properties) -> Properties:
        """Replace the `reply_to` of a request with the unique name. Other properties are returned
        unchanged.
        """
        if properties.reply_to != REPLY_TO:
            return properties
        asker = self._by_channel.get(channel)
        if asker is None:
            raise precondition_failed("fast reply consumer does not exist")
        return replace(properties, reply_to=asker.name)
