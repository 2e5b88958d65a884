"""The exceptions raised by Hopback.

::

    HopbackError
    ├── TopologyError             the declared topology is invalid or cannot be applied
    │   ├── InvalidTopology       the declaration is invalid
    │   └── TopologyConflict      the broker has an object with this name and different settings
    ├── InvalidDeclaration        a handler, option or other declaration in code is invalid
    ├── BrokerError               the broker or the connection failed
    │   ├── ConnectionFailed      no connection could be opened
    │   │   └── LoginRefused      the broker refused user, password or virtual host
    │   ├── ConnectionLost        an open connection was lost
    │   ├── ProtocolError         invalid AMQP 0-9-1 data
    │   ├── ChannelClosed         the broker closed the channel
    │   │   ├── AccessRefused     403
    │   │   ├── NotFound          404
    │   │   ├── ResourceLocked    405
    │   │   └── PreconditionFailed  406
    │   ├── ManagementError       a management API request failed
    │   │   ├── ManagementRefused   401, 403
    │   │   └── ManagementNotFound  404
    │   ├── AnswerTimeout         the broker did not respond in time
    │   ├── NoReply               a request got no reply in time
    │   └── PublishFailed         a publish was not confirmed
    │       ├── Returned          the message was unroutable
    │       ├── Nacked            a queue rejected the message
    │       ├── ConfirmTimeout    the broker did not confirm in time
    │       ├── PublishRefused    the broker refused the message
    │       ├── PublishInterrupted  the channel closed before the confirm
    │       ├── DeliveryLost      not sent, because the delivery of the handler was lost
    │       └── InvalidMessage    not sent, because the message is invalid
    ├── OperationRefused          an invalid request for a dead-letter operation
    │   ├── BadRequest            a field of the request is invalid
    │   ├── BadFilter             a term of a filter cannot be parsed
    │   ├── BadLine               a line is not an exported message
    │   ├── NoSuch                no such queue, session, message or job
    │   │   └── SessionOver       the browse session has ended
    │   ├── CountMismatch         the number of selected messages is not the expected one
    │   ├── JobConflict           another job or the state of the job prevents it
    │   └── NotAllowed            disabled, or no permission
    ├── ReplyRefused              the reply address of a request is not allowed
    ├── LeaseLost                 another process has taken over the job
    ├── StoreUnavailable          the database is not available
    │   ├── StoreDamaged          the database is corrupt
    │   └── StoreTooNew           the database was migrated by a newer version
    ├── ServerUnavailable         the server does not respond
    ├── ServerFailed              the server failed to process a request
    ├── MissingExtra              an optional dependency is not installed
    └── UnsafeOperation           the operation could lose messages

The `remedy` of each class describes how to resolve the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AccessRefused",
    "AnswerTimeout",
    "BadFilter",
    "BadLine",
    "BadRequest",
    "BrokerError",
    "ChannelClosed",
    "ConfirmTimeout",
    "ConnectionFailed",
    "ConnectionLost",
    "CountMismatch",
    "DeliveryLost",
    "HopbackError",
    "InvalidDeclaration",
    "InvalidMessage",
    "InvalidTopology",
    "JobConflict",
    "LeaseLost",
    "LoginRefused",
    "ManagementError",
    "ManagementNotFound",
    "ManagementRefused",
    "MissingExtra",
    "Nacked",
    "NoReply",
    "NoSuch",
    "NotAllowed",
    "NotFound",
    "OperationRefused",
    "PreconditionFailed",
    "Problem",
    "ProtocolError",
    "PublishFailed",
    "PublishInterrupted",
    "PublishRefused",
    "ReplyRefused",
    "ResourceLocked",
    "Returned",
    "ServerFailed",
    "ServerUnavailable",
    "SessionOver",
    "StoreDamaged",
    "StoreTooNew",
    "StoreUnavailable",
    "TopologyConflict",
    "TopologyError",
    "UnsafeOperation",
]


class HopbackError(Exception):
    """Base class for all Hopback errors."""

    remedy: ClassVar[str] = "Read the message. It contains the value found and the value expected."


class TopologyError(HopbackError):
    """Base class for topology errors."""

    remedy: ClassVar[str] = (
        "Change the declaration. `hopback topology check` explains each finding."
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem found in the input, with its location."""

    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got}"


class InvalidTopology(TopologyError):
    """Raised when a topology, a topology file or a parameter is invalid. `problems` contains all
    problems.
    """

    remedy: ClassVar[str] = (
        "Correct all listed lines. Each contains its place and the expected value."
    )

    def __init__(self, problems: tuple[Problem, ...], *, where: str = "topology") -> None:
        self.problems = problems
        self.where = where
        lines = "\n".join(f"  {problem}" for problem in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{where} has {count}:\n{lines}")


class TopologyConflict(TopologyError):
    """Raised when the broker already has a queue or exchange with the same name but different
    settings. `kinds` contains `queue` or `exchange` if they are known.
    """

    remedy: ClassVar[str] = (
        "Change the declaration or migrate the queue. Queue types and arguments cannot be changed in"
        " place. `hopback adopt QUEUE` writes a file for both. `hopback topology plan` compares all"
        " objects."
    )

    def __init__(self, message: str, *, kinds: Iterable[str] = ()) -> None:
        self.kinds = frozenset(kinds)
        super().__init__(message)


class InvalidDeclaration(HopbackError):
    """Raised when a handler, an option or another declaration in code is invalid. `problems`
    contains all problems.
    """

    remedy: ClassVar[str] = "Correct the declaration at the line that the traceback shows."

    def __init__(self, problems: tuple[Problem, ...], *, where: str) -> None:
        self.problems = problems
        self.where = where
        super().__init__("\n".join(f"{where}: {problem}" for problem in problems))


class BrokerError(HopbackError):
    """Base class for errors raised by the broker or the connection to it."""

    remedy: ClassVar[str] = "Check the broker's log. Only confirmed messages were settled."


class ConnectionFailed(BrokerError):
    """Raised when a connection to the broker cannot be opened."""

    remedy: ClassVar[str] = "Check address, credentials, virtual host and that the broker is up."


class LoginRefused(ConnectionFailed):
    """Raised when the broker rejects the username, password or virtual host. Retrying does not
    help.
    """

    remedy: ClassVar[str] = (
        "Check user, password and virtual host. The broker's log contains the reason."
    )


class ConnectionLost(BrokerError):
    """Raised when an open connection is lost. `code` is the reply code if the broker closed it."""

    remedy: ClassVar[str] = (
        "Reconnect. Unsettled deliveries are requeued. Unconfirmed publishes may be lost."
    )

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class ProtocolError(BrokerError):
    """Raised when a frame is not valid AMQP 0-9-1 or exceeds a limit."""

    remedy: ClassVar[str] = (
        "Check that the address is an AMQP 0-9-1 port and that the limits are respected."
    )


class ChannelClosed(BrokerError):
    """Raised when the broker closes the channel. `code` and `text` are the broker's reply code and
    text.
    """

    remedy: ClassVar[str] = "Open a new channel. The broker requeues unsettled deliveries."

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"channel closed by the broker: {code} {text}")


class AccessRefused(ChannelClosed):
    """Raised when the user does not have permission (403)."""

    remedy: ClassVar[str] = "Grant the user the permission named in the text."


class NotFound(ChannelClosed):
    """Raised when the queue or exchange does not exist (404)."""

    remedy: ClassVar[str] = "Create it (`hopback topology apply`) or correct the name."


class ResourceLocked(ChannelClosed):
    """Raised when the queue is exclusive to another connection (405)."""

    remedy: ClassVar[str] = "Use another queue, or end the connection that owns it."


class PreconditionFailed(ChannelClosed):
    """Raised when an object exists with different settings, or when a delivery is settled twice
    (406).
    """

    remedy: ClassVar[str] = (
        "Compare both values in the text. `hopback topology plan` shows the differences."
    )


class ManagementError(BrokerError):
    """Raised when a request to the management API fails. `status` is the HTTP status, or 0 if there
    was no response.
    """

    remedy: ClassVar[str] = (
        "Check the management address. The broker's log contains the reason if it refuses a request."
    )

    def __init__(self, text: str, *, status: int = 0) -> None:
        self.status = status
        super().__init__(text)


class ManagementRefused(ManagementError):
    """Raised when the user is not allowed to use this part of the management API (401 or 403)."""

    remedy: ClassVar[str] = (
        "Check the credentials. Reading needs the user tag `monitoring`, policies need `policymaker`."
    )


class ManagementNotFound(ManagementError):
    """Raised when the virtual host, queue, exchange or policy does not exist (404)."""

    remedy: ClassVar[str] = "Correct the name, or check that the address is a management API."


class AnswerTimeout(BrokerError):
    """Raised when the broker does not respond to a request such as a queue declaration in time."""

    remedy: ClassVar[str] = (
        "Check the log and the load of the broker, and if quorum queues have a leader."
    )


class NoReply(BrokerError):
    """Raised when a request does not get a reply in time. The request may still have been handled."""

    remedy: ClassVar[str] = (
        "Repeat the request if handling it twice is harmless. Check the service that should reply."
    )


class PublishFailed(BrokerError):
    """Base class for publish errors. The message was not confirmed and still belongs to the sender."""

    remedy: ClassVar[str] = "Keep the message and try again, or report the failure to its sender."


class Returned(PublishFailed):
    """Raised when the broker returns a message because no queue matches its routing key."""

    remedy: ClassVar[str] = "Create the missing queue or binding."

    def __init__(
        self, exchange: str, routing_key: str, code: int = 312, text: str = "NO_ROUTE"
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.code = code
        self.text = text
        missing = f"no queue {routing_key!r}"
        if exchange:
            missing = f"no queue is bound to exchange {exchange!r} for routing key {routing_key!r}"
        super().__init__(f"returned by the broker: {missing} ({code} {text})")


class Nacked(PublishFailed):
    """Raised when a queue rejects a message, for example because it is full or unavailable."""

    remedy: ClassVar[str] = "Wait and try again. Check the length limit and state of the target."


class ConfirmTimeout(PublishFailed):
    """Raised when the broker does not confirm or reject a message in time. This happens, for
    example, when a quorum queue has lost its majority.
    """

    remedy: ClassVar[str] = (
        "Try again later with the same message id, because the message may have been stored."
    )


class PublishRefused(PublishFailed):
    """Raised when the broker refuses a message and has not stored it (403, 404 or 406)."""

    remedy: ClassVar[str] = "Correct the cause that the text names, then publish again."

    def __init__(self, exchange: str, routing_key: str, cause: ChannelClosed) -> None:
        where = (
            f"exchange {exchange!r}, routing key {routing_key!r}"
            if exchange
            else (f"queue {routing_key!r}")
        )
        super().__init__(
            f"refused by the broker: {where}: {cause.code} {cause.text}{_refusal_advice(cause)}"
        )


def _refusal_advice(cause: ChannelClosed) -> str:
    if isinstance(cause, NotFound):
        return ". Declare the exchange or correct its name"
    if isinstance(cause, AccessRefused):
        return ". Grant the user the permission to write to it"
    if "message size" in cause.text:
        return (
            '. Publish a reference to the content instead, compress it (`compress="gzip"`), or raise '
            "`max_message_size` of the broker"
        )
    return ""


class PublishInterrupted(PublishFailed):
    """Raised when the channel or connection closes before the broker has confirmed a message."""

    remedy: ClassVar[str] = (
        "Send it again with the same message id, because it may have been stored."
    )


class DeliveryLost(PublishFailed):
    """Raised when a handler publishes after the channel of its delivery was closed.

    The message is not sent. The broker redelivers the handler's message, so publishing now would
    create a duplicate.
    """

    remedy: ClassVar[str] = "Let the handler end. The broker redelivers its message."


class InvalidMessage(PublishFailed):
    """Raised when a message would be rejected by any broker. It is not sent."""

    remedy: ClassVar[str] = "Correct the property, header or reply address that the text names."


class ReplyRefused(HopbackError):
    """Raised when the `reply_to` of a request is neither a direct reply-to address nor a declared
    reply queue.
    """

    remedy: ClassVar[str] = (
        "Declare the queue with App(reply_queues=[…]) if its owner may receive replies."
    )


class OperationRefused(HopbackError):
    """Base class for errors caused by an invalid request to the dead-letter operations."""

    remedy: ClassVar[str] = "Change the request as described."

    @classmethod
    def in_words(cls, text: str, remedy: str = "") -> Self:
        """Create the error with the text and remedy received from a server."""
        error = cls.__new__(cls, text)
        if remedy:
            vars(error)["remedy"] = remedy
        return error


class BadRequest(OperationRefused):
    """Raised when a request is invalid. `field` is the name of the invalid field."""

    remedy: ClassVar[str] = "Correct the named part. The text contains the expected value."
    field: str = ""
    expected: str = ""

    def __init__(self, field: str, expected: str) -> None:
        self.field = field
        self.expected = expected
        super().__init__(f"{field}: expected {expected}")


class BadFilter(OperationRefused):
    """Raised when a filter cannot be parsed. `term` is the part that failed."""

    remedy: ClassVar[str] = "Correct the named term. The reference of filters lists all terms."
    term: str = ""
    expected: str = ""

    def __init__(self, term: str, expected: str) -> None:
        self.term = term
        self.expected = expected
        # Filters can be very long, so only show the beginning.
        shown = term if len(term) <= 80 else f"{term[:80]}…"
        super().__init__(f"filter term {shown!r}: expected {expected}")


class BadLine(OperationRefused):
    """Raised when a line of an import file is not an exported message."""

    remedy: ClassVar[str] = (
        "Check that the file was exported by Hopback and has not been truncated or changed."
    )


class NoSuch(OperationRefused):
    """Raised when a queue, session, message or job does not exist. `kind` and `name` identify it."""

    remedy: ClassVar[str] = "Correct the name, or list the existing ones."
    kind: str = ""
    name: str = ""

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"there is no {kind} {name!r}{hint and f': {hint}'}")


class SessionOver(NoSuch):
    """Raised when a browse session has ended. Its messages are back in the queue."""

    remedy: ClassVar[str] = (
        "Open another session. The messages of the old session are in the queue again."
    )

    def __init__(self, name: str, why: str) -> None:
        super().__init__("open session", name, f"it no longer holds messages ({why})")


class CountMismatch(OperationRefused):
    """Raised when the number of selected messages is not the expected number. No message is
    changed.
    """

    remedy: ClassVar[str] = "Review the messages again, then repeat with the current count."
    expected: int = 0
    found: int = 0

    def __init__(self, expected: int, found: int) -> None:
        self.expected = expected
        self.found = found
        super().__init__(f"expected {expected:,} messages, found {found:,}. No message was changed")


class QueueBusy(OperationRefused):
    """Raised when another request of the same process reads the queue for a long time."""

    remedy: ClassVar[str] = "Wait until the other search, survey, export or review of it ends."


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


class JobConflict(OperationRefused):
    """Raised when another job, or the state of this job, prevents the operation. `job` is the
    conflicting job, if known.
    """

    remedy: ClassVar[str] = (
        "Wait for the named job or cancel it. A job that cannot continue is replaced by a new job."
    )
    job: _HasId | None = None

    def __init__(self, text: str, job: _HasId) -> None:
        self.job = job
        super().__init__(text)


class NotAllowed(OperationRefused):
    """Raised when an operation is disabled or the caller does not have permission."""

    remedy: ClassVar[str] = "Enable it in the settings of the service, or ask for the permission."


class LeaseLost(HopbackError):
    """Raised when another process has taken over the job. The current process must stop working on
    it.
    """

    remedy: ClassVar[str] = "Follow the job in the process that runs it now. No message was lost."


class StoreUnavailable(HopbackError):
    """Raised when the database of jobs, audit log and keys is not available."""

    remedy: ClassVar[str] = "Check that the database runs and has free space, then try again."


class StoreDamaged(StoreUnavailable):
    """Raised when the database is corrupt. Messages are stored in the broker and are not affected."""

    remedy: ClassVar[str] = (
        "Stop every process that uses the database and copy its files (for SQLite also -wal and -shm)."
        " Then restore a backup, or recover the rows with `sqlite3 FILE .recover`, or move the files away"
        " and start with an empty database. The broker's messages are not affected. The guide"
        " 'Operate dead letters' describes each step."
    )


class StoreTooNew(StoreUnavailable):
    """Raised when the database was migrated by a newer version of Hopback."""

    remedy: ClassVar[str] = (
        "Install the Hopback version that migrated the database, or a later one."
    )


class ServerUnavailable(HopbackError):
    """Raised when the server does not respond, or when it cannot reach its broker or database."""

    remedy: ClassVar[str] = (
        "Check the address, that `hopback serve` runs there, and that it reaches its broker and database,"
        " then try again."
    )


class ServerFailed(HopbackError):
    """Raised when the server fails to process a request."""

    remedy: ClassVar[str] = "Check the log of the server."


class MissingExtra(HopbackError, ImportError):
    """Raised when an optional dependency is not installed. The message contains the name of the
    extra.
    """

    remedy: ClassVar[str] = "Install the extra named in the message into this environment."


class UnsafeOperation(HopbackError):
    """Raised when an operation could lose messages or deliver them to the wrong queue."""

    remedy: ClassVar[str] = "Remove the risk that the message describes, or accept it explicitly."

    def __init__(self, text: str, *, can_lift: bool = True) -> None:
        super().__init__(text)
        self.can_lift = can_lift
        """True if the operation might be safe without the queue's delivery limit."""


def describe_scheme(url: str) -> str:
    """Describe the scheme of an address for an error message. The rest may contain a password."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return "no scheme"
    return f"the scheme {scheme!r}" if scheme.isalpha() else "an invalid scheme"
