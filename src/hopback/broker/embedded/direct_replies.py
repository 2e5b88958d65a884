"""Direct reply-to: replies that bypass queues, from the replier to the requesting channel.

A client consumes from `amq.rabbitmq.reply-to`. Requests that it publishes with that `reply_to` get a name
unique to its channel. A message published to that name is delivered to the channel immediately. The channels
belong to clients in this process or to clients of the server.
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
    """A channel that waits for replies: the name in its requests and its consumer tag."""

    channel: ChannelT
    name: str
    tag: str


def check_reply_address(name: str, profile: Profile) -> None:
    """Raise Refusal for a routing key of the form `amq.rabbitmq.reply-to.PID.KEY`.

    RabbitMQ makes such addresses, but this broker does not, so the process id is always unknown.
    """
    if not (profile.forged_reply_ends_connection and name.startswith(f"{REPLY_TO}.")):
        return
    if len([token for token in name.removeprefix(REPLY_TO).split(".") if token]) == 2:
        raise internal_error()


class DirectReplies(Generic[ChannelT]):
    """All channels that wait for direct replies. Refusals have RabbitMQ's text."""

    def __init__(self) -> None:
        self._by_name: dict[str, Asker[ChannelT]] = {}
        self._by_channel: dict[ChannelT, Asker[ChannelT]] = {}

    def begin(
        self, channel: ChannelT, made_up: Callable[[str], str], tag: str, *, no_ack: bool
    ) -> str:
        """Register a channel and return its consumer tag. `made_up` generates the name and a
        missing tag.
        """
        if channel in self._by_channel:
            raise precondition_failed("reply consumer already set")
        if not no_ack:
            raise precondition_failed("reply consumer cannot acknowledge")
        asker = Asker(channel, made_up(f"{REPLY_TO}."), tag or made_up("amq.ctag-"))
        self._by_name[asker.name] = self._by_channel[channel] = asker
        return asker.tag

    def end(self, channel: ChannelT, tag: str | None = None) -> bool:
        """Remove a channel, or only this consumer. Return whether it was registered."""
        asker = self._by_channel.get(channel)
        if asker is None or tag not in (None, asker.tag):
            return False
        del self._by_channel[channel]
        del self._by_name[asker.name]
        return True

    def asker(self, name: str) -> Asker[ChannelT] | None:
        """Return the channel that waits for replies to that name."""
        return self._by_name.get(name)

    def set_reply_address(self, channel: ChannelT, properties: Properties) -> Properties:
        """Return the properties of a request with its unique reply name. Others are unchanged."""
        if properties.reply_to != REPLY_TO:
            return properties
        asker = self._by_channel.get(channel)
        if asker is None:
            raise precondition_failed("fast reply consumer does not exist")
        return replace(properties, reply_to=asker.name)
