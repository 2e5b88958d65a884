"""What operators see: one set of frozen values for the library, the HTTP API, the command and the page.

What they ask for is in `requests`. `codec` writes
both as JSON and reads them back: names in camelCase, moments in RFC 3339. Where JSON had another name
than Python, the field says so. Fields are only ever added.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from hopback.ops.contract.patch import ChangeSample  # noqa: TC001  msgspec reads it at run time
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
    "Held back: the next queue did not take these messages, because it is missing or full or the broker"
    " was starting. No queue length counts them, nothing is lost, and the broker tries again, 3 minutes"
    " later unless its node says otherwise (`hopback doctor`)."
)


class Moment(float):
    """A moment, in seconds since 1970; in JSON a text of RFC 3339 in UTC."""

    __slots__ = ()

    @classmethod
    def known(cls, seconds: float | None) -> Moment | None:
        """The moment, or None where nobody knows it."""
        return None if seconds is None else cls(seconds)


class _AnswerStruct(Struct, frozen=True, rename="camel"):
    """What is answered: fields that are not known are passed over, so that newer servers are understood."""


class Price(StrEnum):
    """What a look costs each message that it holds."""

    FREE = "free"
    COUNTED = "counted"
    REFUSED = "refused"


class Cost(_AnswerStruct, frozen=True):
    """The price of one browse session, with words for people; `limit` None: no delivery limit.

    `can_lift`: it would be free once the limit is lifted by a policy, which can be done from here.
    `is_stream`: messages are read as copies, of which nothing has to go back.
    """

    price: Price
    text: str
    limit: int | None = field(default=None, name="deliveryLimit")
    remedy: str = ""
    can_lift: bool = False
    is_stream: bool = False

    @property
    def is_by_nack(self) -> bool:
        """Whether it is free because what was held goes back by `basic.nack`: closing would be counted."""
        return self.price is Price.FREE and self.limit is not None


class Depth(_AnswerStruct, frozen=True):
    """How many messages a queue holds, who says so and how old that may be. None: nobody says.

    By `amqp` the number of ready messages is exact and of this moment; by `management` all numbers
    may be `lag_s` seconds old when they are read. `held_back` is what dead-lettering could not
    deliver yet. `held_here` is what sessions of this process hold, exactly. `total` is ready and unacked
    together; by `amqp`, where the number of unacked ones is of an earlier moment, it is the ready ones
    and those held here. `age_s` is how old the numbers may be when they are shown.
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
        """How old the numbers may be, in seconds."""
        return max(now - self.read_at, 0.0) + self.lag_s

    def shown_at(self, now: float) -> Depth:
        """The numbers with their age at that moment."""
        return replace(self, age_s=round(self.age(now), 3))


class HeldBack(_AnswerStruct, frozen=True):
    """Messages that the broker holds back in a queue, because the next one does not take them."""

    queue: str
    messages: int


class TargetChoice(_AnswerStruct, frozen=True):
    """A target that a re-drive from this queue may choose.

    `exchange` and `routing_key` are the way if it is the same for every message, else None.
    `flaw` says why nothing may be sent there; None where nothing speaks against it.
    """

    kind: TargetKind
    text: str
    exchange: str | None = None
    routing_key: str | None = None
    warning: str = ""
    flaw: str | None = None
    is_default: bool = False


class QueueSummary(_AnswerStruct, frozen=True, kw_only=True):
    """A row of the list. `exists` is False for a queue that is declared and not on the broker.

    `known_by` says what gave it away: `plan`, `dead-lettering`, `name` or `operator`.
    `state` and `idle_since` come from the management API, where there is one. So does `held_back`:
    how many messages on their way to or from a queue of origin the broker holds back, by the queue
    that holds them; `HELD_BACK` says what that means. The counts of `depth` stand beside it as well.
    `consumed` and `unconsumed` are the queues of origin with and without a consumer; None where that is
    not known.
    `foreign_consumers` are those of `consumers` that are not an active job's own.
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
        # A job that runs takes its messages by one consumer.
        own = self.active_job is not None and self.active_job.state is JobState.RUNNING
        others = None if self.consumers is None else max(self.consumers - own, 0)
        force_setattr(self, "foreign_consumers", others)


class QueueDetail(QueueSummary, frozen=True, kw_only=True):
    """Everything about one dead-letter queue that can be known without looking into it.

    `type` is None where only its name is known. `limit` is the effective delivery limit, None for
    none. `limit_lifted` says that Hopback lifted it by policy; `can_lift` that it could. `cost` is that of
    looking, `job_cost` that of a job, which may be killed with messages in its hands.
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
    """Every dead-letter queue that the caller may see, from one sweep; never looked into."""

    items: tuple[QueueSummary, ...]
    total: int
    read_at: Moment
    age_s: float = field(name="ageSeconds")


class DeadLetter(_AnswerStruct, frozen=True):
    """One dead letter, without its body; its texts are fit for JSON.

    `id` is its place in the session and the beginning of `digest`, a hash of body and properties
    that does not change when it is looked at. `reason` is the broker's word (`rejected`, `expired`,
    `maxlen`, `delivery_limit`), `parked` where a consumer put it here itself, else `unknown`.
    `recorded_by` says who wrote the failure down: `hopback`, another framework, or nobody (empty).
    `sent` is when its envelope says it was made. Times are None where nothing tells.
    `attempts` is how often its handler ran: counted by its consumer, or by the broker as rejects and
    laps through retry queues; `attempts_at_least` where there may have been more.
    `delivery_count` is the quorum queue's.
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
        """Seconds since it failed last; None if nothing tells."""
        return None if self.last_failed is None else max(now - self.last_failed, 0.0)


class Group(_AnswerStruct, frozen=True):
    """Dead letters that have something in common, with one of them as a sample."""

    key: str
    count: int
    first: Moment | None = field(name="firstAt")
    last: Moment | None = field(name="lastAt")
    sample: DeadLetter


class Groups(_AnswerStruct, frozen=True):
    """The groups of a session, the largest first; `more` of them are left out.

    `by` is one of `GroupBy`, or a `header.NAME` or `payload.PATH`. `not_looked_into` have bodies that
    the filter could not look into: they may match or not.
    """

    by: str
    items: tuple[Group, ...]
    more: int
    matching: int
    not_looked_into: int = 0


class LookProgress(_AnswerStruct, frozen=True):
    """How far a look through queues is: in which one, and how many messages it has seen of all."""

    queue: str
    seen: int
    total: int


OnProgress: TypeAlias = "Callable[[LookProgress], object]"
"""Hears now and then how far something is that may take minutes."""


class HeldMessages(_AnswerStruct, frozen=True):
    """Messages that could not be read because consumers hold them.

    `count` is None if the broker has not counted them yet, or there is no management API to ask.
    """

    queue: str
    count: int | None
    holders: tuple[str, ...] = ()


class Survey(_AnswerStruct, frozen=True):
    """The groups of a whole queue, and the number of messages that were read.

    `not_looked_into` have bodies that the filter could not read: they may match or not. `held` were not
    read because consumers hold them.
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
    """Some dead letters of a session; `next` is the cursor of the page after it, None at the end.

    `not_looked_into` have bodies too large or too deeply nested for `payload.` terms: they may match.
    """

    dead_letters: tuple[DeadLetter, ...] = field(name="items")
    matching: int
    next: str | None = field(name="cursor")
    not_looked_into: int = 0


class TimelineEntry(_AnswerStruct, frozen=True):
    """One thing that happened to a message; `time` None where nobody wrote it down."""

    time: Moment | None = field(name="at")
    what: str


class FailureRecord(_AnswerStruct, frozen=True):
    """What the consumer, or its framework, wrote down when it gave up: the cause, not its wrappers."""

    type: str
    message: str
    frame: str
    stack: str
    host: str


class WayCheck(_AnswerStruct, frozen=True):
    """A way that messages would take, how many of those seen, and why it may not be used."""

    exchange: str
    routing_key: str
    count: int = 1
    flaw: str | None = None


class HeaderView(_AnswerStruct, frozen=True):
    """A header with its AMQP type; what JSON cannot hold is written as text."""

    name: str
    type: str
    value: Any


class MessageView(_AnswerStruct, frozen=True, kw_only=True):
    """One message with everything about it. `payload` is parsed where it is JSON and not too large.

    `sentence` says what happened; `failure` is the consumer's own record with its stack, if there is
    one. `way` is where a re-drive would send it by default, or None with `no_way` saying why. Of very
    many headers some are shown; `more_headers` are left out here and stand in an export.
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
    """A browse session as it is now. `complete`: it holds everything that was ready.

    `order_kept` is False where so many messages had come back before that these will go behind them.
    `skipped` messages stand before those that it holds; the broker holds them as well meanwhile. `ready`
    is how many the queue had when it was opened. Other sessions of this service held `held_by_others` more.
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
    """Where a job stands."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """Its connection or its process ended; nothing is lost, and it can be resumed."""
    COMPLETED = "completed"
    FAILED = "failed"
    """It stopped by itself, for the reason that it names; it can be resumed when that is repaired."""
    STOPPED = "stopped"
    """Messages that it had sent came back: it stopped so that no more do. It can be resumed."""


ACTIVE = frozenset({JobState.RUNNING, JobState.PAUSED})
"""The states in which a job holds its queue: no other may begin there."""


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
    """A re-drive or a discard. `reason` explains its state, `why` is the reason of its author.

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
    reason: str = field(default="", name="stateReason")
    why: str = field(default="", name="reason")
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
    """How many messages may have been delivered twice, for a re-drive that was resumed."""

    def __post_init__(self) -> None:
        if not self.url:
            force_setattr(self, "url", f"/admin/dlq/jobs/{self.id}")

    @property
    def is_active(self) -> bool:
        """Whether it holds its queue: no other job may begin there."""
        return self.state in ACTIVE


class JobList(_AnswerStruct, frozen=True):
    """Jobs, the newest first."""

    items: tuple[Job, ...]
    total: int


class FailedMessage(_AnswerStruct, frozen=True):
    """A message that a job could not move, or left out; it is still in its queue."""

    id: str
    digest: str
    message_id: str
    reason: str
    at: Moment


class FailureList(_AnswerStruct, frozen=True):
    """What a job could not move; `cursor` asks for what comes after it, null at the end."""

    items: tuple[FailedMessage, ...]
    cursor: str | None


class LeftOutCount(_AnswerStruct, frozen=True):
    """How many of those seen would not be touched, and why."""

    reason: str
    count: int


class ReachedQueue(_AnswerStruct, frozen=True):
    """A queue that messages of a re-drive would reach, and whether anybody takes them there.

    `messages` wait in it already; None where that is not known.
    """

    queue: str
    consumers: int | None
    messages: int | None


class JobPlan(_AnswerStruct, frozen=True, kw_only=True):
    """What would happen: the answer of a dry run.

    `selection` is the counted selection: a job that is started with it moves exactly these messages.
    `selected` is how many messages the job reads, `seen` how many of them were looked at for this plan and
    `matching` how many of those the filter wants. The histogram, the ways and what is left out are
    of those. `order` says whether the order of messages is kept. A plan with `flaws` will not start.
    `export_to` is the file, where the job runs, to which a discard writes each message first; empty if
    it does not. With a ramp, the job watches `watch_s` seconds after each stage and at its end;
    `watch_text` says how that was found. `conflict` is the job that stands in the way of this one.
    `reaches` are the queues that the ways lead to, with the consumers they have now. `changes` shows on
    some of the messages what a change would do; `export_to` then keeps the originals. `stop_rule` says in
    numbers when the job stops by itself, `duplicates` how many messages may be delivered twice.
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
    """How far an import came.

    `lines` is how many lines from the beginning are confirmed or empty, without a gap: to go on,
    skip as many. `problem` says what stopped it; empty if nothing did.
    """

    lines: int
    published: int
    problem: str = ""


class AuditEntry(_AnswerStruct, frozen=True):
    """One action. `number` orders entries and is given when it is written; 0 before that.

    `action` is a word with a dot, as `job.start`, `session.open`, `message.show`; `result` is `ok`,
    `refused` or `failed`. `details` holds plain values only: numbers, texts, no secrets, no payloads.
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
    """Entries of the audit, the newest first; `cursor` asks for what comes after them, null at the end."""

    items: tuple[AuditEntry, ...]
    cursor: str | None = None
