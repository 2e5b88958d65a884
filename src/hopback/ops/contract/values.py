"""The results of operations for the library, the HTTP API, the command and the page.

`requests` contains the requests. `codec` converts both to and from JSON, where names are in
camelCase and times are in RFC 3339. If the JSON name of a field differs, it is specified with
`name`. Fields may be added, but are never removed.
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
    """A result. Unknown fields are ignored, so that clients can read results of newer servers."""


class Price(StrEnum):
    """The cost of browsing for each message in a session."""

    FREE = "free"
    COUNTED = "counted"
    REFUSED = "refused"


class Cost(_AnswerStruct, frozen=True):
    """The cost of a browse session, with an explanation. `limit` is None if there is no delivery
    limit.

    If `can_lift` is True, Hopback can lift the limit with a policy, which makes browsing free. If
    `is_stream` is True, messages are only copied and do not have to be requeued.
    """

    price: Price
    text: str
    limit: int | None = field(default=None, name="deliveryLimit")
    remedy: str = ""
    can_lift: bool = False
    is_stream: bool = False

    @property
    def is_by_nack(self) -> bool:
        """Whether browsing is only free with `basic.nack`. Closing the channel would count as a
        delivery.
        """
        return self.price is Price.FREE and self.limit is not None


class Depth(_AnswerStruct, frozen=True):
    """The number of messages in a queue. None means unknown.

    If `source` is `amqp`, the number of ready messages is exact. If it is `management`, all numbers
    may already have been `lag_s` seconds old when they were read. `age_s` is the maximum age in
    seconds. `held_back` counts messages that the broker could not dead-letter yet. `held_here` is
    the exact number of messages in sessions of this process. `total` is the sum of ready and
    unacked messages. If `source` is `amqp`, it is the sum of ready messages and `held_here`,
    because the number of unacked messages is older.
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
        """Return the maximum age of the numbers in seconds."""
        return max(now - self.read_at, 0.0) + self.lag_s

    def shown_at(self, now: float) -> Depth:
        """Return the numbers with their age at this time."""
        return replace(self, age_s=round(self.age(now), 3))


class HeldBack(_AnswerStruct, frozen=True):
    """Messages that the broker holds back in a queue, because the next queue does not accept them."""

    queue: str
    messages: int


class TargetChoice(_AnswerStruct, frozen=True):
    """A possible target for re-driving messages of a queue.

    `exchange` and `routing_key` are None if they are not the same for all messages. `flaw` is why
    the target cannot be used, or None if it can.
    """

    kind: TargetKind
    text: str
    exchange: str | None = None
    routing_key: str | None = None
    warning: str = ""
    flaw: str | None = None
    is_default: bool = False


class QueueSummary(_AnswerStruct, frozen=True, kw_only=True):
    """A dead-letter queue in a list. `exists` is False if the queue is declared but missing on the
    broker.

    `known_by` is how the queue was recognised: `plan`, `dead-lettering`, `name` or `operator`.
    `state`, `idle_since` and `held_back` require the management API. `held_back` contains the
    queues that hold back messages to or from an origin, as described by `HELD_BACK`. The counts of
    `depth` are repeated in the summary. `consumed` and `unconsumed` are the origins with and
    without a consumer, or None if this is unknown. `foreign_consumers` is the number of consumers
    excluding that of a running job.
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
        # a running job has one consumer
        own = self.active_job is not None and self.active_job.state is JobState.RUNNING
        others = None if self.consumers is None else max(self.consumers - own, 0)
        force_setattr(self, "foreign_consumers", others)


class QueueDetail(QueueSummary, frozen=True, kw_only=True):
    """The properties of a dead-letter queue, which are determined without reading messages.

    `type` is None if only the name is known. `limit` is the effective delivery limit, or None if
    there is none. `limit_lifted` is True if Hopback has lifted it with a policy, and `can_lift` is
    True if this is possible. `cost` is the cost of browsing. `job_cost` is the cost if a job is
    killed while it holds messages.
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
    """All dead-letter queues that the caller may view, read at the same time. No message is read."""

    items: tuple[QueueSummary, ...]
    total: int
    read_at: Moment
    age_s: float = field(name="ageSeconds")


class DeadLetter(_AnswerStruct, frozen=True):
    """A dead letter without its body. All of its strings can be represented in JSON.

    `id` consists of the position in the session and the start of `digest`. This is a hash of body
    and properties that does not change when the message is browsed. `reason` is the reason reported
    by the broker (`rejected`, `expired`, `maxlen`, `delivery_limit`). It is `parked` if a consumer
    has published the message to this queue, and `unknown` otherwise. `recorded_by` is the framework
    that has recorded the failure, for example `hopback`, or empty. `sent` is the creation time in
    the envelope. Unknown times are None. `attempts` counts how often the handler was run, as
    recorded by the consumer or derived from the rejects and retry cycles in the broker's headers.
    If `attempts_at_least` is True, it is a minimum. `delivery_count` is the count of the quorum
    queue.
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
        """Return the seconds since the last failure, or None if its time is unknown."""
        return None if self.last_failed is None else max(now - self.last_failed, 0.0)


class Group(_AnswerStruct, frozen=True):
    """Dead letters with the same value of a property. One of them is included as a sample."""

    key: str
    count: int
    first: Moment | None = field(name="firstAt")
    last: Moment | None = field(name="lastAt")
    sample: DeadLetter


class Groups(_AnswerStruct, frozen=True):
    """The groups of a session, largest first. `more` is the number of omitted groups.

    `by` is one of `GroupBy`, `header.NAME` or `payload.PATH`. `not_looked_into` messages may also
    match, but have bodies that the filter could not read.
    """

    by: str
    items: tuple[Group, ...]
    more: int
    matching: int
    not_looked_into: int = 0


class LookProgress(_AnswerStruct, frozen=True):
    """The progress of an operation that reads queues, with the current queue and the messages read."""

    queue: str
    seen: int
    total: int


OnProgress: TypeAlias = "Callable[[LookProgress], object]"
"""A function that receives the progress of a long operation."""


class HeldMessages(_AnswerStruct, frozen=True):
    """Messages that could not be read because consumers hold them.

    `count` is None without a management API, or if the broker has not counted them yet.
    """

    queue: str
    count: int | None
    holders: tuple[str, ...] = ()


class Survey(_AnswerStruct, frozen=True):
    """The groups of a whole queue, and the number of messages that were read.

    `not_looked_into` messages may also match, but have bodies that the filter could not read.
    `held` messages were not read because consumers hold them.
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
    """A page of dead letters. `next` is the cursor of the next page, or None on the last page.

    `not_looked_into` messages may also match, but have bodies that are too large or too deeply
    nested for `payload.` terms.
    """

    dead_letters: tuple[DeadLetter, ...] = field(name="items")
    matching: int
    next: str | None = field(name="cursor")
    not_looked_into: int = 0


class TimelineEntry(_AnswerStruct, frozen=True):
    """An event in the history of a message. `time` is None if it was not recorded."""

    time: Moment | None = field(name="at")
    what: str


class FailureRecord(_AnswerStruct, frozen=True):
    """A failure as recorded by the consumer or its framework. It is the original exception without
    wrappers.
    """

    type: str
    message: str
    frame: str
    stack: str
    host: str


class WayCheck(_AnswerStruct, frozen=True):
    """The exchange and routing key of a re-drive. `flaw` is why they cannot be used, if there is a
    reason.

    `count` is the number of messages read so far that would be published to them.
    """

    exchange: str
    routing_key: str
    count: int = 1
    flaw: str | None = None


class HeaderView(_AnswerStruct, frozen=True):
    """A header with its AMQP type. A value that JSON does not support is converted to a string."""

    name: str
    type: str
    value: Any


class MessageView(_AnswerStruct, frozen=True, kw_only=True):
    """A message with its history, headers and payload. `payload` is parsed if it is JSON and not
    too large.

    `sentence` is a summary of the failure. `failure` is the record of the consumer with its stack,
    if there is one. `way` is the default target of a re-drive. If it is None, `no_way` is the
    reason. `more_headers` is the number of headers that are omitted here. An export contains all of
    them.
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
    """A browse session. `complete` is True if it holds all messages that were ready.

    `order_kept` is False if the queue is going to requeue the messages behind others that were
    requeued earlier. `skipped` messages are ahead of the held ones, and the broker keeps them
    unacked until the session ends. `ready` is the number of ready messages when the session was
    opened. At that time, other sessions of this process held `held_by_others` messages.
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
    """The new message id of an edited copy."""

    message_id: str


class JobState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """The connection or process of the job has ended. No message is lost, and the job can be resumed."""
    COMPLETED = "completed"
    FAILED = "failed"
    """The job has stopped because of an error. Its reason names the error. It can be resumed after
    the repair.
    """
    STOPPED = "stopped"
    """The job has stopped because messages it had sent were dead-lettered again. It can be resumed."""


ACTIVE = frozenset({JobState.RUNNING, JobState.PAUSED})
"""The states in which no other job can start for the queue."""


class Counts(_AnswerStruct, frozen=True):
    """The progress of a job in numbers of messages.

    `selected` is the size of the selection. Each of these messages is `done`, `skipped` (excluded
    by the filter or the loop guard), `failed`, `gone` (it left the queue without the job) or
    `remaining`. `returned` messages were requeued. `arrived_meanwhile` messages arrived while the
    job was running, and are not moved. `came_back` messages were sent by the job and dead-lettered
    again. It is None if they were not counted, and a minimum if `came_back_at_least` is True.
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
    """A re-drive or a discard. `state_reason` explains its state, and `reason` is the reason given
    by its author.

    `selection` is the selection at the start. `rate` is the current limit in messages per second,
    or None if there is none. `target` describes the target, and `target_choice` is the target as it
    was chosen. `run` counts starts and resumptions, and `changes` counts saved changes. `watch_s`
    is the watch time in seconds after each stage of the ramp and at the end, or None if the job
    does not watch. `watch_text` explains it.
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
    """For a resumed re-drive, a description of how many messages may have been delivered twice."""

    def __post_init__(self) -> None:
        if not self.url:
            force_setattr(self, "url", f"/admin/dlq/jobs/{self.id}")

    @property
    def is_active(self) -> bool:
        """Whether the job is running or paused. In these states, no other job can start for its queue."""
        return self.state in ACTIVE

    @property
    def matching(self) -> int:
        """The number of selected messages that match the filter, as counted at the start."""
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
    """Jobs, newest first."""

    items: tuple[Job, ...]
    total: int


class FailedMessage(_AnswerStruct, frozen=True):
    """A message that a job could not move or has skipped. It is still in its queue."""

    id: str
    digest: str
    message_id: str
    reason: str
    at: Moment


class FailureList(_AnswerStruct, frozen=True):
    """Messages that a job could not move. `cursor` is the cursor of the next page, or null on the
    last page.
    """

    items: tuple[FailedMessage, ...]
    cursor: str | None


class LeftOutCount(_AnswerStruct, frozen=True):
    """How many of the messages read by the plan would be skipped, with the reason."""

    reason: str
    count: int


class ChangeSample(_AnswerStruct, frozen=True):
    """The effect of a change on a message. It contains the changed lines, or the reason why it
    cannot be changed.

    Each line starts with `-` if it is removed, `+` if it is added, a space if it is unchanged, and
    `…` if lines are omitted.
    """

    id: str
    diff: tuple[str, ...] = ()
    problem: str = ""


class ReachedQueue(_AnswerStruct, frozen=True):
    """A queue that messages of a re-drive would reach, with its current consumers and messages.

    Unknown numbers are None.
    """

    queue: str
    consumers: int | None
    messages: int | None


class JobPlan(_AnswerStruct, frozen=True, kw_only=True):
    """The plan of a job, which is the result of a dry run.

    `selection` is the counted selection. A job that is started with it moves exactly these
    messages. The job reads `selected` messages. The plan has read `seen` of them, of which
    `matching` match the filter. `reasons`, `errors`, `ways` and `left_out` only count messages that
    the plan has read. `reaches` are the queues that the ways lead to, with their current consumers.
    `order` describes whether messages keep their order. `changes` shows the effect of a change on
    some messages.

    A plan with `flaws` cannot be started. `conflict` is another job that prevents this one.
    `export_to` is a file on the machine of the job. A discard writes all messages to it, and a
    re-drive with a change writes the originals. It is empty if there is no file. If there is a
    ramp, the job watches for `watch_s` seconds after each stage and at the end, which `watch_text`
    explains. `stop_rule` describes when the job stops itself. `duplicates` describes how many
    messages could be delivered twice.
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

    The first `lines` lines were confirmed or are empty. To continue the import, skip them.
    `problem` is the error that stopped it, or empty if the import is complete.
    """

    lines: int
    published: int
    problem: str = ""


class AuditEntry(_AnswerStruct, frozen=True):
    """An action in the audit. `number` is the order of the entries. It is 0 until the entry is
    written.

    `action` is a name with a dot, for example `job.start` or `session.open`. `result` is `ok`,
    `refused` or `failed`. `details` contains numbers and strings, but neither secrets nor payloads.
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
    """Audit entries, newest first. `cursor` is the cursor of the next page, or null on the last page."""

    items: tuple[AuditEntry, ...]
    cursor: str | None = None
