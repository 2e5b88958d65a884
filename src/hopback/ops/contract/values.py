"""The answers of operations: frozen values for the library, the HTTP API, the command and the page.

`requests` contains the requests. `codec` converts both to and from JSON with names in camelCase and times in
RFC 3339. A field whose JSON name differs specifies it with `name`. Fields are added, never removed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from hopback.ops.contract.requests import (
    WHOLE_QUEUE,
    JobKind,
    Selection,
    Target,
    TargetKind,
)
from hopback.topology.model import QueueType  # noqa: TC001  msgspec reads it at run time

if TYPE_CHECKING:
    from collections.abc import Callable


HELD_BACK = (
    "Held back: the next queue did not accept these messages, because it is missing or full or the broker"
    " was starting. No queue length includes them. They are not lost: the broker retries after 3 minutes,"
    " unless its node has another interval (`hopback doctor`)."
)


class Moment(float):
    """A time in seconds since 1970. In JSON it is an RFC 3339 string in UTC."""

    __slots__ = ()

    @classmethod
    def known(cls, seconds: float | None) -> Moment | None:
        """Return the time, or None if it is unknown."""
        return None if seconds is None else cls(seconds)


class _AnswerStruct(Struct, frozen=True, rename="camel"):
    """An answer. Unknown fields are ignored, so clients can read the answers of newer servers."""


class Price(StrEnum):
    """The cost of browsing for each message that a session holds."""

    FREE = "free"
    COUNTED = "counted"
    REFUSED = "refused"


class Cost(_AnswerStruct, frozen=True):
    """The cost of one browse session and its explanation. `limit` is None without a delivery limit.

    If `can_lift`, Hopback can lift the limit by a policy, which makes browsing free. If `is_stream`, messages
    are read as copies and do not have to be requeued.
    """

    price: Price
    text: str
    limit: int | None = field(default=None, name="deliveryLimit")
    remedy: str = ""
    can_lift: bool = False
    is_stream: bool = False

    @property
    def is_by_nack(self) -> bool:
        """Whether browsing is free only with `basic.nack`. A closed channel counts as a delivery."""
        return self.price is Price.FREE and self.limit is not None


class Depth(_AnswerStruct, frozen=True):
    """The number of messages in a queue, with the source and the age of the numbers. None is unknown.

    If `source` is `amqp`, the number of ready messages is exact. If it is `management`, all numbers may have
    been `lag_s` seconds old when they were read. `held_back` counts messages that dead-lettering could not
    deliver yet. `held_here` counts the messages in sessions of this process and is exact. `total` is the sum
    of ready and unacked messages. For `amqp` it is the sum of ready messages and `held_here`, because the
    number of unacked messages is older. `age_s` is the greatest possible age of the numbers in seconds.
    """

    ready: int | None = field(name="messagesReady")
    unacked: int | None = field(name="messagesUnacknowledged")
    consumers: int | None
    source: str
    read_at: Moment
    lag_s: float = field(default=0.0, name="lagSeconds")
    held_back: int | None = field(default=None, name="messagesHeldBack")
    total: int | None = field(default=None, name="messages")
    age_s: float = field(default=0.0, name="ageSeconds")
    held_here: int = field(default=0, name="messagesHeldHere")

    def __post_init__(self) -> None:
        beside = self.held_here if self.source == "amqp" else self.unacked or 0
        force_setattr(self, "total", None if self.ready is None else self.ready + beside)

    def age(self, now: float) -> float:
        """Return the greatest possible age of the numbers in seconds."""
        return max(now - self.read_at, 0.0) + self.lag_s

    def shown_at(self, now: float) -> Depth:
        """Return the numbers with their age at this time."""
        return replace(self, age_s=round(self.age(now), 3))


class HeldBack(_AnswerStruct, frozen=True):
    """Messages that the broker holds back in a queue because the next queue does not accept them."""

    queue: str
    messages: int


class TargetChoice(_AnswerStruct, frozen=True):
    """A possible target of a re-drive from this queue.

    `exchange` and `routing_key` are None if they differ between messages. `flaw` is the reason why the target
    cannot be used, None if it can.
    """

    kind: TargetKind
    text: str
    exchange: str | None = None
    routing_key: str | None = None
    warning: str = ""
    flaw: str | None = None
    is_default: bool = False


class QueueSummary(_AnswerStruct, frozen=True, kw_only=True):
    """A dead-letter queue in a list. `exists` is False if the queue is declared but not on the broker.

    `known_by` is the reason why it counts as a dead-letter queue: `plan`, `dead-lettering`, `name` or
    `operator`. `state`, `idle_since` and `held_back` need the management API. `held_back` counts the messages
    to or from a queue of origin that the broker holds back, by the queue that contains them. `HELD_BACK`
    explains it. The counts of `depth` are repeated here. `consumed` and `unconsumed` are the queues of origin
    with and without a consumer, None if unknown. `foreign_consumers` is the number of consumers without that
    of a running job.
    """

    queue: str
    main_queue: str | None
    origins: tuple[str, ...]
    retry_exchange: str | None = None
    label: str
    known_by: str
    exists: bool = True
    messages: int | None = None
    messages_ready: int | None = None
    messages_unacknowledged: int | None = None
    consumers: int | None = None
    state: str | None = None
    idle_since: str | None = None
    depth: Depth
    held_back: tuple[HeldBack, ...] = ()
    active_job: Job | None = None
    consumed: tuple[str, ...] | None = None
    unconsumed: tuple[str, ...] | None = None
    foreign_consumers: int | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "messages", self.depth.total)
        force_setattr(self, "messages_ready", self.depth.ready)
        force_setattr(self, "messages_unacknowledged", self.depth.unacked)
        force_setattr(self, "consumers", self.depth.consumers)
        # A running job has one consumer.
        own = self.active_job is not None and self.active_job.state is JobState.RUNNING
        others = None if self.consumers is None else max(self.consumers - own, 0)
        force_setattr(self, "foreign_consumers", others)


class QueueDetail(QueueSummary, frozen=True, kw_only=True):
    """The properties of one dead-letter queue. No message is read for them.

    `type` is None if only the name is known. `limit` is the effective delivery limit, None without one.
    `limit_lifted` is True if Hopback has lifted it by a policy, `can_lift` if Hopback can. `cost` is the cost
    of browsing, `job_cost` the cost of a job that is killed while it holds messages.
    """

    type: QueueType | None
    limit: int | None = field(name="deliveryLimit")
    limit_lifted: bool = False
    can_lift: bool = False
    cost: Cost
    job_cost: Cost
    targets: tuple[TargetChoice, ...]
    broker_version: str


class Overview(_AnswerStruct, frozen=True):
    """Every dead-letter queue that the caller may see, read at one time. No message is read."""

    items: tuple[QueueSummary, ...]
    total: int
    read_at: Moment
    age_s: float = field(name="ageSeconds")


class DeadLetter(_AnswerStruct, frozen=True):
    """One dead letter without its body. Its texts are valid in JSON.

    `id` consists of the position in the session and the start of `digest`, a hash of body and properties that
    browsing does not change. `reason` is the broker's reason (`rejected`, `expired`, `maxlen`,
    `delivery_limit`), `parked` if a consumer published the message to this queue, else `unknown`.
    `recorded_by` is the framework that recorded the failure, for example `hopback`, or empty. `sent` is the
    time of creation in the envelope. Unknown times are None. `attempts` counts the runs of the handler, by
    the record of the consumer or by the rejects and retry cycles in the broker's headers. It is a minimum if
    `attempts_at_least`. `delivery_count` is the count of the quorum queue.
    """

    id: str
    place: int
    digest: str
    queue: str
    reason: str
    origin: str
    type: str
    message_id: str
    error: str
    error_message: str
    fingerprint: str
    recorded_by: str
    attempts: int
    redrives: int
    redrive_job: str
    first_failed: Moment | None = field(name="firstFailedAt")
    last_failed: Moment | None = field(name="lastFailedAt")
    size: int
    delivery_count: int
    exchange: str
    routing_key: str
    redelivered: bool
    sent: str = ""
    attempts_at_least: bool = False

    def age(self, now: float) -> float | None:
        """Return the seconds since the last failure, None if its time is unknown."""
        return None if self.last_failed is None else max(now - self.last_failed, 0.0)


class Group(_AnswerStruct, frozen=True):
    """Dead letters with the same value of a property, with one of them as a sample."""

    key: str
    count: int
    first: Moment | None = field(name="firstAt")
    last: Moment | None = field(name="lastAt")
    sample: DeadLetter


class Groups(_AnswerStruct, frozen=True):
    """The groups of a session, the largest first. `more` is the number of omitted groups.

    `by` is one of `GroupBy`, `header.NAME` or `payload.PATH`. `not_looked_into` messages have bodies that the
    filter could not read. They may match.
    """

    by: str
    items: tuple[Group, ...]
    more: int
    matching: int
    not_looked_into: int = 0


class LookProgress(_AnswerStruct, frozen=True):
    """The progress of an operation that reads queues: the present queue and the number of read messages."""

    queue: str
    seen: int
    total: int


OnProgress: TypeAlias = "Callable[[LookProgress], object]"
"""Called with the progress of an operation that may take minutes."""


class HeldMessages(_AnswerStruct, frozen=True):
    """Messages that could not be read because consumers hold them.

    `count` is None if the broker has not counted them yet, or without a management API.
    """

    queue: str
    count: int | None
    holders: tuple[str, ...] = ()


class Survey(_AnswerStruct, frozen=True):
    """The groups of a whole queue, and the number of messages that were read.

    `not_looked_into` messages have bodies that the filter could not read. They may match. `held` messages
    were not read because consumers hold them.
    """

    queue: str
    by: str
    groups: tuple[Group, ...] = field(name="items")
    seen: int
    matching: int
    complete: bool
    not_looked_into: int = 0
    held: tuple[HeldMessages, ...] = ()


class Page(_AnswerStruct, frozen=True):
    """Some dead letters of a session. `next` is the cursor of the next page, None on the last page.

    `not_looked_into` messages have bodies too large or deeply nested for `payload.` terms. They may match.
    """

    dead_letters: tuple[DeadLetter, ...] = field(name="items")
    matching: int
    next: str | None = field(name="cursor")
    not_looked_into: int = 0


class TimelineEntry(_AnswerStruct, frozen=True):
    """One event in the history of a message. `time` is None if it was not recorded."""

    time: Moment | None = field(name="at")
    what: str


class FailureRecord(_AnswerStruct, frozen=True):
    """The failure as recorded by the consumer or its framework: the original exception, not its wrappers."""

    type: str
    message: str
    frame: str
    stack: str
    host: str


class WayCheck(_AnswerStruct, frozen=True):
    """An exchange and routing key of a re-drive. `flaw` is the reason why they cannot be used.

    `count` is the number of read messages that would be published to them.
    """

    exchange: str
    routing_key: str
    count: int = 1
    flaw: str | None = None


class HeaderView(_AnswerStruct, frozen=True):
    """A header with its AMQP type. A value without a JSON equivalent is converted to text."""

    name: str
    type: str
    value: Any


class MessageView(_AnswerStruct, frozen=True, kw_only=True):
    """One message with its history, headers and payload. `payload` is parsed if it is JSON and not too large.

    `sentence` summarises the failure. `failure` is the consumer's record with its stack, if there is one.
    `way` is the default target of a re-drive. If it is None, `no_way` is the reason. `more_headers` is the
    number of headers that are omitted here and included in an export.
    """

    dead_letter: DeadLetter = field(name="letter")
    sentence: str
    timeline: tuple[TimelineEntry, ...]
    failure: FailureRecord | None
    way: WayCheck | None
    no_way: str = ""
    properties: dict[str, Any]
    headers: tuple[HeaderView, ...]
    more_headers: int
    payload: Any
    payload_encoding: str
    payload_bytes: int
    body_url: str = ""


class SessionView(_AnswerStruct, frozen=True, kw_only=True):
    """A browse session. It is `complete` if it holds all messages that were ready.

    `order_kept` is False if the queue will put the messages behind others that were requeued earlier.
    `skipped` messages are ahead of the held ones. The broker keeps them unacked until the session ends.
    `ready` is the number of ready messages when the session was opened. Other sessions of this process held
    `held_by_others` messages.
    """

    id: str
    url: str = ""
    queue: str
    held: int
    held_bytes: int
    complete: bool
    opened_at: Moment
    expires_at: Moment
    by: str
    by_id: str = ""
    cost: Cost
    order_kept: bool = True
    skipped: int = 0
    ready: int = 0
    held_by_others: int = 0

    def __post_init__(self) -> None:
        if not self.url:
            force_setattr(self, "url", f"/admin/dlq/sessions/{self.id}")


class LimitPolicy(_AnswerStruct, frozen=True):
    """The policy that lifts a delivery limit."""

    policy: str


class EditedCopy(_AnswerStruct, frozen=True):
    """The copy that was sent: its new message id."""

    message_id: str


class JobState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """The connection or the process of the job ended. No message is lost, and the job can be resumed."""
    COMPLETED = "completed"
    FAILED = "failed"
    """The job stopped because of an error, which its reason names. It can be resumed after the repair."""
    STOPPED = "stopped"
    """The job stopped because messages that it had sent died again. It can be resumed."""


ACTIVE = frozenset({JobState.RUNNING, JobState.PAUSED})
"""The states in which no other job can start on the queue."""


class Counts(_AnswerStruct, frozen=True):
    """The progress of a job, in numbers of messages.

    `selected` is the size of the selection. Each of its messages is `done`, `skipped` (left out by the filter
    or the loop guard), `failed`, `gone` (it left the queue without the job) or `remaining`. `returned` counts
    requeued messages. `arrived_meanwhile` counts messages that arrived while the job ran, which it does not
    touch. `came_back` counts messages that the job sent and that are dead again, None if they were not
    counted. It is a minimum if `came_back_at_least`.
    """

    selected: int = 0
    done: int = 0
    skipped: int = 0
    failed: int = 0
    returned: int = 0
    arrived_meanwhile: int = 0
    came_back: int | None = None
    remaining: int = 0
    came_back_at_least: bool = False
    gone: int = 0

    def __post_init__(self) -> None:
        left = max(self.selected - self.done - self.skipped - self.failed - self.gone, 0)
        force_setattr(self, "remaining", left)


class Job(_AnswerStruct, frozen=True, kw_only=True):
    """A re-drive or a discard. `state_reason` explains its state, `reason` is that of its author.

    `selection` is the selection at the start. `rate` is the present limit in messages per second, None
    without a limit. `target` is the target in words, `target_choice` as it was chosen. `run` counts starts
    and resumptions, `changes` the saved changes. `watch_s` is the watch time in seconds after each stage
    of the ramp and at the end, None if the job does not watch. `watch_text` explains it.
    """

    id: str
    url: str = ""
    kind: JobKind
    queue: str
    state: JobState
    state_reason: str = ""
    reason: str = ""
    by: str = ""
    by_id: str = ""
    target: str = ""
    selection: Selection = WHOLE_QUEUE
    rate: float | None = None
    ramp: tuple[int, ...] = ()
    counts: Counts = Counts()
    can_resume: bool = False
    export_to: str = ""
    created: Moment = field(name="createdAt")
    updated: Moment = field(name="updatedAt")
    target_choice: Target | None = None
    run: int = 1
    changes: int = 0
    watch_s: float | None = field(default=None, name="watchSeconds")
    watch_text: str = ""
    duplicates: str = ""
    """The number of messages that may have been delivered twice, in words, for a resumed re-drive."""

    def __post_init__(self) -> None:
        if not self.url:
            force_setattr(self, "url", f"/admin/dlq/jobs/{self.id}")

    @property
    def is_active(self) -> bool:
        """Whether the job runs or is paused, so that no other job can start on its queue."""
        return self.state in ACTIVE

    @property
    def matching(self) -> int:
        """The number of selected messages that match the filter, as of the start."""
        known = self.selection.count
        return self.counts.selected if known is None else known

    @property
    def left(self) -> int:
        """The number of messages that the job may still move.

        `counts.remaining` also includes messages that do not match the filter.
        """
        counts = self.counts
        return min(max(self.matching - counts.done - counts.failed, 0), counts.remaining)


class JobList(_AnswerStruct, frozen=True):
    """Jobs, the newest first."""

    items: tuple[Job, ...]
    total: int


class FailedMessage(_AnswerStruct, frozen=True):
    """A message that a job could not move, or left out. It is still in its queue."""

    id: str
    digest: str
    message_id: str
    reason: str
    at: Moment


class FailureList(_AnswerStruct, frozen=True):
    """Messages that a job could not move. `cursor` is that of the next page, null on the last page."""

    items: tuple[FailedMessage, ...]
    cursor: str | None


class LeftOutCount(_AnswerStruct, frozen=True):
    """The number of read messages that the job would leave out, and the reason."""

    reason: str
    count: int


class ChangeSample(_AnswerStruct, frozen=True):
    """The effect of a change on one message: the changed lines, or the reason why it cannot be made.

    The first character of a line is its mark: `-` removed, `+` added, ` ` unchanged, `…` omitted.
    """

    id: str
    diff: tuple[str, ...] = ()
    problem: str = ""


class ReachedQueue(_AnswerStruct, frozen=True):
    """A queue that messages of a re-drive would reach, with its present consumers and messages.

    Unknown numbers are None.
    """

    queue: str
    consumers: int | None
    messages: int | None


class JobPlan(_AnswerStruct, frozen=True, kw_only=True):
    """The plan of a job: the answer of a dry run.

    `selection` is the counted selection. A job that starts with it moves exactly these messages. `selected`
    is the number of messages that the job reads, `seen` the number that the plan has read, and `matching` the
    number of those that match the filter. `reasons`, `errors`, `ways` and `left_out` count these messages.
    `order` describes whether messages keep their order. A plan with `flaws` does not start. `export_to` is
    the file on the machine of the job to which a discard writes each message first, or a re-drive with a
    change the originals. It is empty without a file. With a ramp, the job watches for `watch_s` seconds after
    each stage and at the end. `watch_text` explains that time. `conflict` is another job that prevents this
    one. `reaches` are the queues that the ways lead to, with their present consumers. `changes` previews a
    change on some messages. `stop_rule` is the condition under which the job stops itself, `duplicates` the
    number of messages that may be delivered twice, both in words.
    """

    kind: JobKind
    queue: str
    target: str
    selection: Selection
    selected: int
    seen: int
    matching: int
    reasons: tuple[Group, ...]
    errors: tuple[Group, ...]
    ways: tuple[WayCheck, ...]
    left_out: tuple[LeftOutCount, ...]
    cost: Cost
    order: str
    warnings: tuple[str, ...] = ()
    flaws: tuple[str, ...] = ()
    may_start: bool = True
    as_of: Moment
    watch_s: float = field(default=0.0, name="watchSeconds")
    export_to: str = ""
    watch_text: str = ""
    conflict: Job | None = None
    changes: tuple[ChangeSample, ...] = ()
    ramp: tuple[int, ...] = ()
    reaches: tuple[ReachedQueue, ...] = ()
    stop_rule: str = ""
    duplicates: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "may_start", not self.flaws)


class Imported(_AnswerStruct, frozen=True):
    """The result of an import.

    The first `lines` lines are confirmed or empty. To continue the import, skip them. `problem` is the error
    that stopped it, empty after a complete import.
    """

    lines: int
    published: int
    problem: str = ""


class AuditEntry(_AnswerStruct, frozen=True):
    """One action. `number` orders the entries. It is assigned on writing and 0 before.

    `action` is a name with a dot, for example `job.start` or `session.open`. `result` is `ok`,
    `refused` or `failed`. `details` contains numbers and texts, never secrets or payloads.
    """

    at: Moment
    by: str
    action: str
    queue: str = ""
    job: str = ""
    reason: str = ""
    result: str = "ok"
    details: dict[str, Any] = {}
    number: int = 0


class AuditList(_AnswerStruct, frozen=True):
    """Entries of the audit, the newest first. `cursor` is that of the next page, null on the last page."""

    items: tuple[AuditEntry, ...]
    cursor: str | None = None
