"""Everything that Hopback raises, split by whose turn it is to act.

::

    HopbackError
    ├── TopologyError             yours: the declared topology has to change
    │   ├── InvalidTopology       the declaration itself is wrong (all problems at once)
    │   └── TopologyConflict      the broker already has something else under that name
    ├── BrokerError               theirs: the broker or the line to it
    │   ├── ConnectionFailed      no connection could be made
    │   │   └── LoginRefused      the broker answers, and refuses user or password
    │   ├── ConnectionLost        the connection ended while in use
    │   ├── ProtocolError         bytes that are not AMQP 0-9-1
    │   ├── ChannelClosed         the broker closed the channel
    │   │   ├── AccessRefused     403
    │   │   ├── NotFound          404
    │   │   ├── ResourceLocked    405
    │   │   └── PreconditionFailed  406
    │   ├── ManagementError       the HTTP management API failed or refused
    │   │   ├── ManagementRefused   401, 403
    │   │   └── ManagementNotFound  404
    │   └── PublishFailed         a message has no confirmed home
    │       ├── Returned          no queue wanted it
    │       ├── Nacked            a queue refused it
    │       ├── ConfirmTimeout    the broker said nothing in time
    │       └── PublishInterrupted  the channel died before the broker answered
    ├── MissingExtra              yours: a library is not installed; an ImportError, too
    └── UnsafeOperation           ours: we refuse, because something could be lost

Each class carries its `remedy`: one sentence that says what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "AccessRefused",
    "BrokerError",
    "ChannelClosed",
    "ConfirmTimeout",
    "ConnectionFailed",
    "ConnectionLost",
    "HopbackError",
    "InvalidTopology",
    "LoginRefused",
    "ManagementError",
    "ManagementNotFound",
    "ManagementRefused",
    "MissingExtra",
    "Nacked",
    "NotFound",
    "PreconditionFailed",
    "Problem",
    "ProtocolError",
    "PublishFailed",
    "PublishInterrupted",
    "ResourceLocked",
    "Returned",
    "TopologyConflict",
    "TopologyError",
    "UnsafeOperation",
]


class HopbackError(Exception):
    """Anything that Hopback raises on purpose; catch it to catch them all."""

    remedy: ClassVar[str] = "Read the message: it names what was found and what was expected."


class TopologyError(HopbackError):
    """The declared topology cannot be used as it stands."""

    remedy: ClassVar[str] = (
        "Change the declaration; `hopback topology check` explains each finding."
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in an input, with the path that leads to it."""

    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got}"


class InvalidTopology(TopologyError):
    """A topology, file or parameter is wrong; `problems` lists everything that is."""

    remedy: ClassVar[str] = "Mend every line listed; each names its place and what belongs there."

    def __init__(self, problems: tuple[Problem, ...], *, where: str = "topology") -> None:
        self.problems = problems
        self.where = where
        lines = "\n".join(f"  {problem}" for problem in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{where} has {count}:\n{lines}")


class TopologyConflict(TopologyError):
    """The broker holds another queue or exchange under a declared name."""

    remedy: ClassVar[str] = (
        "Declare what the broker has, or migrate: queue types and arguments cannot change in place."
    )


class BrokerError(HopbackError):
    """The broker, or the line to it, failed or refused."""

    remedy: ClassVar[str] = "Look at the broker's log; nothing was settled that was not confirmed."


class ConnectionFailed(BrokerError):
    """No connection to the broker could be made."""

    remedy: ClassVar[str] = "Check address, credentials, virtual host and that the broker is up."


class LoginRefused(ConnectionFailed):
    """The broker answered and refused the user: trying again does not help."""

    remedy: ClassVar[str] = "Check the user and the password; the broker's log names the reason."


class ConnectionLost(BrokerError):
    """The connection ended while it was in use."""

    remedy: ClassVar[str] = (
        "Reconnect; unsettled deliveries come back, unconfirmed publishes may not."
    )


class ProtocolError(BrokerError):
    """The bytes received, or asked to be sent, are not valid AMQP 0-9-1 within our limits."""

    remedy: ClassVar[str] = "Check that the address is an AMQP 0-9-1 port and the limits are met."


class ChannelClosed(BrokerError):
    """The broker closed the channel; `code` and `text` are its own words."""

    remedy: ClassVar[str] = "Open a new channel; what it had not settled goes back to its queue."

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"channel closed by the broker: {code} {text}")


class AccessRefused(ChannelClosed):
    """403: the user may not do this."""

    remedy: ClassVar[str] = "Grant the user the permission named in the text."


class NotFound(ChannelClosed):
    """404: the queue or exchange does not exist."""

    remedy: ClassVar[str] = "Create it (`hopback topology apply`) or correct the name."


class ResourceLocked(ChannelClosed):
    """405: the queue is exclusive to another connection."""

    remedy: ClassVar[str] = "Use another queue, or end the connection that owns it."


class PreconditionFailed(ChannelClosed):
    """406: what exists differs from what was asked, or a delivery was settled twice."""

    remedy: ClassVar[str] = (
        "Compare both values in the text; `hopback topology plan` shows the diff."
    )


class ManagementError(BrokerError):
    """The broker's HTTP management API failed; `status` is the HTTP status, 0 where there was none."""

    remedy: ClassVar[str] = (
        "Check the management address, and the broker's log for what it refused."
    )

    def __init__(self, text: str, *, status: int = 0) -> None:
        self.status = status
        super().__init__(text)


class ManagementRefused(ManagementError):
    """401 or 403: the user may not use the management API, or not for this."""

    remedy: ClassVar[str] = (
        "Check the credentials; looking needs the user tag `monitoring`, policies need `policymaker`."
    )


class ManagementNotFound(ManagementError):
    """404: the management API knows no such virtual host, queue, exchange or policy."""

    remedy: ClassVar[str] = "Correct the name, or check that the address is a management API."


class PublishFailed(BrokerError):
    """A message has no confirmed home; whoever sent it still owns it."""

    remedy: ClassVar[str] = "Keep the message and try again, or hand the failure to its sender."


class Returned(PublishFailed):
    """The broker gave the message back: no queue is bound for its routing key."""

    remedy: ClassVar[str] = "Create the queue or binding the message was meant for."

    def __init__(
        self, exchange: str, routing_key: str, code: int = 312, text: str = "NO_ROUTE"
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.code = code
        self.text = text
        where = f"exchange {exchange!r}" if exchange else "the default exchange"
        super().__init__(f"returned by {where}, routing key {routing_key!r}: {code} {text}")


class Nacked(PublishFailed):
    """A queue refused the message: it is full, unavailable or has crashed."""

    remedy: ClassVar[str] = "Wait and try again; look at the target's length limit and state."


class ConfirmTimeout(PublishFailed):
    """The broker neither confirmed nor refused in time, as a queue without quorum does."""

    remedy: ClassVar[str] = "Try again later with the same message id: it may have been stored."


class PublishInterrupted(PublishFailed):
    """The channel or connection ended before the broker answered."""

    remedy: ClassVar[str] = "Send again with the same message id: it may have been stored."


class MissingExtra(HopbackError, ImportError):
    """A library that comes with an extra is not installed; the message names the extra."""

    remedy: ClassVar[str] = "Install the extra that the message names, into this environment."


class UnsafeOperation(HopbackError):
    """Hopback refuses, because carrying this out could lose or misdeliver messages."""

    remedy: ClassVar[str] = "Remove the danger the message names, or accept it explicitly."
