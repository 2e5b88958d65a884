"""The exceptions that Hopback raises, grouped by who has to act.

::

    HopbackError
    ├── TopologyError             yours: the declared topology has to change
    │   ├── InvalidTopology       the declaration itself is wrong (all problems at once)
    │   └── TopologyConflict      the broker has a different object of that name
    ├── InvalidDeclaration        yours: a handler, option or other declaration in code is wrong
    ├── BrokerError               theirs: the broker or the connection to it
    │   ├── ConnectionFailed      no connection could be opened
    │   │   └── LoginRefused      the broker refused user, password or virtual host
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
    │   ├── AnswerTimeout         the broker left a request unanswered
    │   ├── NoReply               a request got no reply in time, or cannot get one any more
    │   └── PublishFailed         a publish was not confirmed
    │       ├── Returned          the message was unroutable
    │       ├── Nacked            a queue refused it
    │       ├── ConfirmTimeout    the broker did not answer in time
    │       ├── PublishRefused    not stored: no such exchange, no permission or too large
    │       ├── PublishInterrupted  the channel ended before the broker answered
    │       ├── DeliveryLost      not sent: the delivery that caused it was lost
    │       └── InvalidMessage    not sent: no broker would accept it
    ├── OperationRefused          yours: an operation on dead letters cannot be done as requested
    │   ├── BadRequest            a part of the request has to change
    │   ├── BadFilter             a term of a filter cannot be parsed
    │   ├── BadLine               a line is not an exported message
    │   ├── NoSuch                no such queue, session, message or job
    │   │   └── SessionOver       the browse session has ended
    │   ├── CountMismatch         the selection has another size than expected
    │   ├── JobConflict           another job or the state of the job prevents it
    │   └── NotAllowed            disabled here, or not granted
    ├── ReplyRefused              theirs: the request asks for a reply to an address that is not allowed
    ├── LeaseLost                 theirs: another process runs the job now
    ├── StoreUnavailable          theirs: the database of jobs and audit does not answer
    │   ├── StoreDamaged          theirs: the database is corrupt
    │   └── StoreTooNew           theirs: a newer Hopback migrated the database
    ├── ServerUnavailable         theirs: the server does not answer
    ├── ServerFailed              theirs: the server failed
    ├── MissingExtra              yours: a library is not installed (also an ImportError)
    └── UnsafeOperation           ours: Hopback refuses, because messages could be lost

Each class has a `remedy`: one sentence about how to resolve the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

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
    """The base class of all exceptions that Hopback raises on purpose."""

    remedy: ClassVar[str] = "Read the message. It contains the value found and the value expected."


class TopologyError(HopbackError):
    """The declared topology cannot be used."""

    remedy: ClassVar[str] = (
        "Change the declaration. `hopback topology check` explains each finding."
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in an input, with its path."""

    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got}"


class InvalidTopology(TopologyError):
    """A topology, file or parameter is invalid. `problems` lists all problems."""

    remedy: ClassVar[str] = (
        "Correct every listed line. Each contains its place and the expected value."
    )

    def __init__(self, problems: tuple[Problem, ...], *, where: str = "topology") -> None:
        self.problems = problems
        self.where = where
        lines = "\n".join(f"  {problem}" for problem in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{where} has {count}:\n{lines}")


class TopologyConflict(TopologyError):
    """The broker has a different queue or exchange of a declared name."""

    remedy: ClassVar[str] = (
        "Declare the object as the broker has it, or migrate: queue types and arguments cannot change in"
        " place. `hopback adopt QUEUE` writes the file for either. `hopback topology plan` compares all"
        " objects."
    )


class InvalidDeclaration(HopbackError):
    """A handler, an option or another declaration in code is wrong. `problems` lists all problems."""

    remedy: ClassVar[str] = "Correct the declaration at the line that the traceback shows."

    def __init__(self, problems: tuple[Problem, ...], *, where: str) -> None:
        self.problems = problems
        self.where = where
        super().__init__("\n".join(f"{where}: {problem}" for problem in problems))


class BrokerError(HopbackError):
    """The broker, or the connection to it, failed or refused."""

    remedy: ClassVar[str] = "Check the broker's log. Only confirmed messages were settled."


class ConnectionFailed(BrokerError):
    """No connection to the broker could be opened."""

    remedy: ClassVar[str] = "Check address, credentials, virtual host and that the broker is up."


class LoginRefused(ConnectionFailed):
    """The broker refused user, password or virtual host. Trying again does not help."""

    remedy: ClassVar[str] = (
        "Check user, password and virtual host. The broker's log contains the reason."
    )


class ConnectionLost(BrokerError):
    """The connection ended while it was in use."""

    remedy: ClassVar[str] = (
        "Reconnect. Unsettled deliveries are requeued. Unconfirmed publishes may be lost."
    )


class ProtocolError(BrokerError):
    """Received or outgoing bytes are not valid AMQP 0-9-1 within the limits."""

    remedy: ClassVar[str] = "Check that the address is an AMQP 0-9-1 port and the limits are met."


class ChannelClosed(BrokerError):
    """The broker closed the channel. `code` and `text` are the broker's."""

    remedy: ClassVar[str] = "Open a new channel. The broker requeues unsettled deliveries."

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"channel closed by the broker: {code} {text}")


class AccessRefused(ChannelClosed):
    """403: the user lacks permission."""

    remedy: ClassVar[str] = "Grant the user the permission named in the text."


class NotFound(ChannelClosed):
    """404: the queue or exchange does not exist."""

    remedy: ClassVar[str] = "Create it (`hopback topology apply`) or correct the name."


class ResourceLocked(ChannelClosed):
    """405: the queue is exclusive to another connection."""

    remedy: ClassVar[str] = "Use another queue, or end the connection that owns it."


class PreconditionFailed(ChannelClosed):
    """406: the object differs from the declared one, or a delivery was settled twice."""

    remedy: ClassVar[str] = (
        "Compare both values in the text. `hopback topology plan` shows the differences."
    )


class ManagementError(BrokerError):
    """The broker's HTTP management API failed. `status` is the HTTP status, 0 without an answer."""

    remedy: ClassVar[str] = (
        "Check the management address. The broker's log contains the reason of a refusal."
    )

    def __init__(self, text: str, *, status: int = 0) -> None:
        self.status = status
        super().__init__(text)


class ManagementRefused(ManagementError):
    """401 or 403: the user may not use the management API or this part of it."""

    remedy: ClassVar[str] = (
        "Check the credentials. Reading needs the user tag `monitoring`, policies need `policymaker`."
    )


class ManagementNotFound(ManagementError):
    """404: the virtual host, queue, exchange or policy does not exist."""

    remedy: ClassVar[str] = "Correct the name, or check that the address is a management API."


class AnswerTimeout(BrokerError):
    """The broker did not answer a request (declare, channel open, consume) in time."""

    remedy: ClassVar[str] = (
        "Look at the broker: its log, its load, and for quorum queues whether a leader exists."
    )


class NoReply(BrokerError):
    """A request got no reply in time, or cannot get one any more. It may have been handled."""

    remedy: ClassVar[str] = (
        "Repeat the request if handling it twice is harmless. Check the service that should reply."
    )


class PublishFailed(BrokerError):
    """A publish was not confirmed. The sender still owns the message."""

    remedy: ClassVar[str] = "Keep the message and try again, or hand the failure to its sender."


class Returned(PublishFailed):
    """The broker returned the message because no queue is bound for its routing key."""

    remedy: ClassVar[str] = "Create the queue or binding the message was meant for."

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
    """A queue refused the message: it is full, unavailable or has crashed."""

    remedy: ClassVar[str] = "Wait and try again. Check the length limit and state of the target."


class ConfirmTimeout(PublishFailed):
    """The broker neither confirmed nor rejected in time. A queue without quorum behaves like
    this.
    """

    remedy: ClassVar[str] = "Try again later with the same message id: it may have been stored."


class PublishRefused(PublishFailed):
    """The broker refused the message and has not stored it: 403, 404 or 406."""

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
    """The channel or connection ended before the broker answered."""

    remedy: ClassVar[str] = "Send again with the same message id: it may have been stored."


class DeliveryLost(PublishFailed):
    """Not sent: the channel of the handled delivery has ended.

    The broker redelivers the message, and that run publishes. Publishing now would duplicate it.
    """

    remedy: ClassVar[str] = "Let the handler end: the broker delivers its message again."


class InvalidMessage(PublishFailed):
    """The message is invalid on any broker and was not sent."""

    remedy: ClassVar[str] = "Correct the property, header or reply address that the text names."


class ReplyRefused(HopbackError):
    """The `reply_to` of a request is neither a direct reply address nor a declared reply queue."""

    remedy: ClassVar[str] = (
        "Declare the queue with App(reply_queues=[…]) if its owner may receive replies."
    )


class OperationRefused(HopbackError):
    """An operation on dead letters was not started because of its request, not because of a
    broker.
    """

    remedy: ClassVar[str] = "Change the request as described."

    @classmethod
    def in_words(cls, text: str, remedy: str = "") -> Self:
        """Build the refusal with the text and remedy of a server."""
        error = cls.__new__(cls, text)
        if remedy:
            vars(error)["remedy"] = remedy
        return error


class BadRequest(OperationRefused):
    """The request cannot be carried out. `field` names the part that has to change."""

    remedy: ClassVar[str] = "Correct the named part. The text contains the expected value."
    field: str = ""
    expected: str = ""

    def __init__(self, field: str, expected: str) -> None:
        self.field = field
        self.expected = expected
        super().__init__(f"{field}: expected {expected}")


class BadFilter(OperationRefused):
    """A term of a filter cannot be parsed. `term` is that term."""

    remedy: ClassVar[str] = "Correct the named term. The reference of filters lists all terms."
    term: str = ""
    expected: str = ""

    def __init__(self, term: str, expected: str) -> None:
        self.term = term
        self.expected = expected
        # A filter may be very long. Its start is enough to find the term.
        shown = term if len(term) <= 80 else f"{term[:80]}…"
        super().__init__(f"filter term {shown!r}: expected {expected}")


class BadLine(OperationRefused):
    """A line is not a message in the export format."""

    remedy: ClassVar[str] = (
        "Check that the file came from an export, and where it was cut or changed."
    )


class NoSuch(OperationRefused):
    """A queue, session, message or job does not exist. `kind` and `name` identify it."""

    remedy: ClassVar[str] = "Correct the name, or list the existing ones."
    kind: str = ""
    name: str = ""

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"there is no {kind} {name!r}{hint and f': {hint}'}")


class SessionOver(NoSuch):
    """The browse session has ended and no longer holds messages."""

    remedy: ClassVar[str] = (
        "Open another session. The messages of the old session are in the queue again."
    )

    def __init__(self, name: str, why: str) -> None:
        super().__init__("open session", name, f"it no longer holds messages ({why})")


class CountMismatch(OperationRefused):
    """The selection has another size than expected. No message was changed."""

    remedy: ClassVar[str] = "Review the messages again, then repeat with the current count."
    expected: int = 0
    found: int = 0

    def __init__(self, expected: int, found: int) -> None:
        self.expected = expected
        self.found = found
        super().__init__(f"expected {expected:,} messages, found {found:,}. No message was changed")


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


class JobConflict(OperationRefused):
    """Another job or the job's state prevents the operation. `job` is that job, if known."""

    remedy: ClassVar[str] = (
        "Wait for the named job or cancel it. A job that cannot continue is replaced by a new job."
    )
    job: _HasId | None = None

    def __init__(self, text: str, job: _HasId) -> None:
        self.job = job
        super().__init__(text)


class NotAllowed(OperationRefused):
    """This operation is disabled here, or the caller lacks permission."""

    remedy: ClassVar[str] = "Switch it on in the settings of the service, if it is wanted."


class LeaseLost(HopbackError):
    """Another process has taken over the job. This process must stop working on it."""

    remedy: ClassVar[str] = "Follow the job in the process that runs it now. No message was lost."


class StoreUnavailable(HopbackError):
    """The database of jobs, audit and keys does not answer or refused."""

    remedy: ClassVar[str] = "Check that the database runs and has free space, then try again."


class StoreDamaged(StoreUnavailable):
    """The database is corrupt. Messages are in the broker and are not affected."""

    remedy: ClassVar[str] = (
        "Stop every process that uses the database and copy its files (for SQLite also -wal and -shm)."
        " Then restore a backup, or recover the rows with `sqlite3 FILE .recover`, or move the files away"
        " and start with an empty database. The broker's messages are not affected. The guide"
        " 'Operate dead letters' describes each step."
    )


class StoreTooNew(StoreUnavailable):
    """A newer Hopback migrated the database."""

    remedy: ClassVar[str] = (
        "Install the Hopback version that migrated the database, or a later one."
    )


class ServerUnavailable(HopbackError):
    """The server does not answer, or cannot reach its broker or database."""

    remedy: ClassVar[str] = (
        "Check the address, that `hopback serve` runs there, and that it reaches its broker and database,"
        " then try again."
    )


class ServerFailed(HopbackError):
    """The server failed while answering."""

    remedy: ClassVar[str] = "Look at the server's log."


class MissingExtra(HopbackError, ImportError):
    """A library of an extra is not installed. The message names the extra."""

    remedy: ClassVar[str] = "Install the extra that the message names, into this environment."


class UnsafeOperation(HopbackError):
    """Hopback refuses an operation that could lose or misdeliver messages."""

    remedy: ClassVar[str] = "Remove the danger the message names, or accept it explicitly."

    def __init__(self, text: str, *, can_lift: bool = True) -> None:
        super().__init__(text)
        self.can_lift = can_lift
        """Whether lifting the queue's delivery limit may remove the danger."""
