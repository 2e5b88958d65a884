"""The requests of operators, with their defaults and limits.

Limits and defaults are only defined here. Requests are immutable, and `codec` refuses unknown
fields. The results are in `values`. `Settings` contains the limits of the process that runs the
operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, field

from hopback.ops.contract.options import option
from hopback.topology.plan import MAX_REDRIVES

if TYPE_CHECKING:
    from pathlib import Path


HIGHEST_RATE = 1_000_000
"""Messages per second. No broker is that fast, so this limit only catches mistakes."""
LONGEST_WATCH_S = 86_400
"""Seconds (one day) between two stages of a ramp. A longer wait is a mistake."""
LONGEST_FOUND_WATCH_S = 480
"""Seconds. Longest watch time that a job chooses itself. Three of them end before the consumer
timeout (30 min).
"""
MOST_HELD = 10_000
"""Messages in a browse session, for which a process has enough memory. Larger requests are refused."""
LARGEST_PAGE = 200
"""Messages in a response. Clients can request further pages."""
MOST_IN_FLIGHT = 10_000
"""Unconfirmed messages of a job, for which broker and process have enough memory. Larger requests
are refused.
"""
MOST_REDRIVES = 1000
"""Maximum limit for earlier re-drives of a message. A higher limit would not stop a loop."""
RAMP = (1, 5, 25)
"""The stages of a careful start. The job sends 1, 5 and 25 messages before the rest.

The page proposes a ramp, because operators check the first messages anyway. `Pace` has no ramp by
default, because scripts that use the API, the library or the command wait for the end of a job.
"""

# seconds between two attempts to send a message. Most alarms of a broker end earlier.
_LONGEST_PAUSE_S = 30.0
# operations in a change. All of them are applied to each message and shown in the review.
_MOST_STEPS = 50
# number of times a pause is doubled. It has reached the longest pause by then.
_MOST_DOUBLINGS = 16

_Stages = Annotated[tuple[Annotated[int, Meta(ge=1, le=1_000_000)], ...], Meta(max_length=20)]
Rate = Annotated[float, Meta(gt=0, le=HIGHEST_RATE)]
# AMQP names have at most 255 bytes.
_Name = Annotated[str, Meta(max_length=255)]
_QueueName = Annotated[str, Meta(min_length=1, max_length=255)]
# A reason is one line in the audit.
_Reason = Annotated[str, Meta(min_length=1, max_length=1000)]
# A filter this long fills a page. Longer ones are mistakes.
_FilterText = Annotated[str, Meta(max_length=4096)]
_Cursor = Annotated[int, Meta(ge=0, le=2**31)]
_Ids = Annotated[tuple[_Name, ...], Meta(max_length=2000)]

LONGEST_SESSION_S = 1500
"""Seconds until a browse session ends. The consumer timeout of a broker is 30 min."""
_SessionSeconds = Annotated[float, Meta(ge=1, le=LONGEST_SESSION_S)]
_SessionMessages = Annotated[int, Meta(ge=1, le=MOST_HELD)]
# A session can skip as many messages as a search reads.
_Skipped = Annotated[int, Meta(ge=0, le=5_000_000)]
_SessionBytes = Annotated[int, Meta(ge=1, le=256 * 1024 * 1024)]


class _Asked(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of a request. Unknown fields are refused."""


class Who(Struct, frozen=True, rename="camel"):
    """The user or program that sends a request, with a permanent id and a display name."""

    id: str = ""
    name: str = ""


NOBODY = Who()
"""A caller without a name, for example a script."""


class TargetKind(StrEnum):
    """The targets of a re-drive."""

    DESIGN = "design"
    """The target in the plan of the queue. If there is no plan, it is the queue in which the
    message failed.
    """
    FAILED_QUEUE = "failed-queue"
    RETRY_EXCHANGE = "retry-exchange"
    ORIGIN_EXCHANGE = "origin-exchange"
    """The exchange of the first publish. All other queues bound to it also receive the message again."""
    QUEUE = "queue"
    EXCHANGE = "exchange"


class Target(_Asked, frozen=True):
    """The target of a re-drive. `reset` is whether to reset the attempts. If it is None, the plan
    decides. The routing key of a queue is its name.
    """

    kind: TargetKind = TargetKind.DESIGN
    exchange: _Name = ""
    routing_key: _Name = ""
    reset: bool | None = None

    def __post_init__(self) -> None:
        if self.exchange and self.kind is not TargetKind.EXCHANGE:
            raise ValueError(
                f"Expected `exchange` only with kind `exchange`, got {self.exchange!r} with kind"
                f" `{self.kind}`"
            )
        if self.routing_key and self.kind not in (TargetKind.QUEUE, TargetKind.EXCHANGE):
            raise ValueError(
                "Expected `routingKey` only with kind `queue` or `exchange`, got"
                f" {self.routing_key!r} with kind `{self.kind}`"
            )

    @property
    def warning(self) -> str:
        """A warning for operators who choose this target."""
        if self.kind is TargetKind.ORIGIN_EXCHANGE:
            return "every queue bound to the exchange gets the message again, not only the one that failed"
        return ""

    def __str__(self) -> str:
        if self.kind is TargetKind.QUEUE:
            return f"queue {self.routing_key}"
        if self.kind is TargetKind.EXCHANGE:
            return f"exchange {self.exchange} with key {self.routing_key!r}"
        return self.kind.value


BY_DESIGN = Target()
"""The target defined by the design."""


class GroupBy(StrEnum):
    """The properties by which dead letters can be grouped."""

    FINGERPRINT = "fingerprint"
    REASON = "reason"
    ORIGIN = "origin"
    TYPE = "type"
    ERROR = "error"


class SessionRequest(_Asked, frozen=True):
    """How many messages a session holds, and for how long.

    The first `skip` messages are not part of the session. The broker keeps them unacked until the
    session ends. `force` accepts that messages can be lost, and `lift` prevents this with a policy.
    """

    limit: _SessionMessages = 100
    max_bytes: _SessionBytes = 64 * 1024 * 1024
    seconds: _SessionSeconds = field(default=300.0, name="ttlSeconds")
    skip: _Skipped = 0
    force: bool = False
    lift: bool = False


USUAL_SESSION = SessionRequest()
"""Up to 100 messages for five minutes."""


class Renewal(_Asked, frozen=True):
    """The time by which to extend a session. If it is None, the original duration is used."""

    seconds: _SessionSeconds | None = field(default=None, name="ttlSeconds")


class MessagesQuery(_Asked, frozen=True, omit_defaults=True):
    """A filter, and the part of the dead letters to return."""

    where: _FilterText = field(default="", name="filter")
    cursor: _Cursor = 0
    limit: Annotated[int, Meta(ge=1, le=LARGEST_PAGE)] = 20


class GroupQuery(_Asked, frozen=True, omit_defaults=True):
    """How to group dead letters. `by` is one of `GroupBy`, `header.NAME` or `payload.PATH`."""

    by: Annotated[str, Meta(max_length=512)] = GroupBy.FINGERPRINT.value
    where: _FilterText = field(default="", name="filter")


class Pace(_Asked, frozen=True):
    """The speed of a job and its checks for returned messages.

    `rate` is in messages per second. None means no limit. After each stage of `ramp`, the job waits
    `watch_s` seconds and stops if more than `max_returned` messages have returned. If `watch_s` is
    None, it waits as long as the retries of the design take, but at most eight minutes. If a
    message is refused, the job tries to send it `tries` times before it stops. The pause between
    attempts grows from `pause_s` seconds.
    """

    rate: Annotated[
        Rate | None,
        option("--rate", "R", "Send at most R messages per second. By default there is no limit."),
    ] = None
    in_flight: Annotated[
        int,
        Meta(ge=1, le=MOST_IN_FLIGHT),
        option(
            "--in-flight",
            "N",
            "Maximum number of messages sent but not confirmed.",
            redrive_only=True,
        ),
    ] = 500
    ramp: Annotated[
        _Stages,
        option(
            "--ramp",
            "[1,5,25]",
            "Start with few messages and stop if they return.",
            redrive_only=True,
        ),
    ] = ()
    watch_s: Annotated[
        Annotated[float, Meta(ge=0, le=LONGEST_WATCH_S)] | None,
        option(
            "--watch",
            "S",
            "Wait S seconds after each stage of the ramp. Default: the time of the retries.",
            redrive_only=True,
        ),
    ] = field(default=None, name="watchSeconds")
    max_returned: Annotated[
        int,
        Meta(ge=0, le=10_000_000),
        option(
            "--max-returned",
            "N",
            "With a ramp, continue until more than N messages return.",
            redrive_only=True,
        ),
    ] = 0
    tries: Annotated[int, Meta(ge=1, le=1000)] = 5
    pause_s: Annotated[float, Meta(ge=0, le=_LONGEST_PAUSE_S)] = field(
        default=0.25, name="pauseSeconds"
    )

    def pause(self, attempt: int) -> float:
        """Return the seconds to wait before the next attempt."""
        return min(self.pause_s * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS), _LONGEST_PAUSE_S)

    def stage_ends(self) -> frozenset[int]:
        """Return the numbers of sent messages after which the job watches for returned messages."""
        sums, total = [], 0
        for size in self.ramp:
            total += size
            sums.append(total)
        return frozenset(sums)


UNHURRIED = Pace()
"""No rate limit and no ramp."""


class Selection(_Asked, frozen=True, kw_only=True):
    """Some or all messages of a dead-letter queue, and how many they are if they were counted.

    Without `session`, these are the first `limit` messages of the queue. By default they are all
    messages that are ready when they are counted. With `session`, they are the messages of this
    browse session, or only those in `ids`. Messages that do not match `filter` are excluded. A
    group of failures is selected with the filter `group:FINGERPRINT`.

    A plan returns the selection with `queue`, `limit` and `count`. A job that is started with it
    does not move messages that have arrived after the plan was made. `count` is the number of
    matching messages. If it is not exact, `estimate` explains why. `last_digest` is the digest of
    the last message read by the plan, and `place` is its position in the queue. When the job
    starts, the new position of this message shows how many messages have left the queue since.
    """

    session: _Name = ""
    ids: _Ids = ()
    filter: Annotated[
        _FilterText,
        option("--filter", "TERMS", "Only messages that match all terms, as in 'age>2h'."),
    ] = ""
    limit: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        option(
            "--limit",
            "N",
            "Only the first N messages of the queue. By default all that are ready.",
            least=1,
        ),
    ] = None
    queue: _Name = ""
    count: Annotated[int, Meta(ge=0)] | None = None
    estimate: str = ""
    last_digest: _Name = field(default="", name="mark")
    place: Annotated[int, Meta(ge=0)] = 0

    @property
    def is_planned(self) -> bool:
        """Whether a plan has counted the messages."""
        return self.count is not None

    def __str__(self) -> str:
        if self.session:
            found = "messages of a browse session"
        elif self.limit is None:
            found = "all messages"
        else:
            found = "the first message" if self.limit == 1 else f"the first {self.limit:,} messages"
        return f"{found} that match {self.filter}" if self.filter else found


WHOLE_QUEUE = Selection()
"""All messages that are ready when they are counted."""


class ExportRequest(_Asked, frozen=True):
    """The messages to export. `force` accepts that browsing could lose messages."""

    selection: Selection = WHOLE_QUEUE
    force: bool = False


class ImportQuery(_Asked, frozen=True, omit_defaults=True):
    """The reason for an import."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


class PatchOperation(Struct, frozen=True, forbid_unknown_fields=True):
    """An operation of a JSON patch, which adds, replaces, removes or tests the value at `path`.

    The path is a JSON pointer such as `/order/lines/0/sku`. In names, `~1` stands for a slash and
    `~0` for a tilde. `-` at the end means the position after the last item of a list. `value` is
    required for all operations except `remove`.
    """

    op: Literal["add", "replace", "remove", "test"]
    path: Annotated[str, Meta(max_length=1024, pattern=r"^(/.*)?$")]
    value: Any = UNSET

    def __post_init__(self) -> None:
        if self.value is UNSET and self.op != "remove":
            raise ValueError(
                f"Expected `value` with `{self.op}` (null is written as null), got none"
            )


Patch = Annotated[tuple[PatchOperation, ...], Meta(max_length=_MOST_STEPS)]
"""A JSON patch (RFC 6902), which is a list of operations."""


class JobKind(StrEnum):
    """What a job does with its messages."""

    REDRIVE = "re-drive"
    DISCARD = "discard"


class _JobRequest(_Asked, frozen=True, kw_only=True, tag_field="kind"):
    """The fields that all requests for jobs have.

    A job only starts if its selection contains `expected_count` messages. If this is None, any
    number is accepted. `force` accepts that browsing could lose messages. If `dry_run` is True, a
    server returns the plan and does not start the job.
    """

    kind: ClassVar[JobKind]
    queue: _QueueName
    selection: Selection = WHOLE_QUEUE
    pace: Pace = UNHURRIED
    expected_count: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        option("--expect-count", "N", "Do nothing unless exactly N messages are selected."),
    ] = None
    reason: Annotated[_Reason, option("--reason", "TEXT", "The reason, for the audit.")]
    force: Annotated[
        bool, option("--force", "", "Continue even if browsing could lose messages.")
    ] = False
    dry_run: bool = False


class RedriveRequest(_JobRequest, frozen=True, kw_only=True, tag=JobKind.REDRIVE.value):
    """Send messages of a dead-letter queue back.

    Messages that have already been re-driven `max_redrives` times are skipped. 0 means no limit.
    `change` is applied to each body before it is sent. In this case, the original messages are
    first written to a file.
    """

    kind: ClassVar[JobKind] = JobKind.REDRIVE
    target: Target = BY_DESIGN
    max_redrives: Annotated[
        int,
        Meta(ge=0, le=MOST_REDRIVES),
        option("--max-redrives", "N", "Skip messages that were re-driven N times. 0: no limit."),
    ] = MAX_REDRIVES
    change: Annotated[
        Patch,
        option(
            "--change",
            "FILE",
            "Apply this JSON patch (RFC 6902) to each body. The originals are kept in a file.",
        ),
    ] = ()


class DiscardRequest(_JobRequest, frozen=True, kw_only=True, tag=JobKind.DISCARD.value):
    """Permanently remove messages from a dead-letter queue.

    `confirm` must be the name of the queue. Each message is written to a file before it is removed,
    unless `export` is False.
    """

    kind: ClassVar[JobKind] = JobKind.DISCARD
    confirm: _Name = ""
    export: Annotated[
        bool, option("--no-export", "", "Do not write the messages to a file: they are lost.")
    ] = True


JobRequest: TypeAlias = RedriveRequest | DiscardRequest
"""A request for a job, as used by the command, HTTP, the page and the journal."""


class Submission(_Asked, frozen=True, kw_only=True):
    """Properties of a job that only a local caller can set. They cannot be sent to a server.

    If a job with the same `key` exists, that job is used. `operation` is the correlation id of the
    sent messages. The default is the id of the job. `stamped` is whether to also write the
    `x-redriven-…` headers. If it is None, the design decides. `export_to` is the file to which a
    discard writes. By default, the file is named after the job and is in the export folder. It is
    compressed if its name ends with `.zst`.
    """

    key: str | None = None
    operation: str = ""
    stamped: bool | None = None
    export_to: str = ""


BY_CALLER = Submission()
"""A submission without a key."""


class JobsQuery(_Asked, frozen=True, omit_defaults=True):
    """Which jobs to list."""

    queue: _Name = ""
    active: bool = False
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class FailuresQuery(_Asked, frozen=True, omit_defaults=True):
    """Which failures of a job to list, starting with number `cursor`."""

    cursor: _Cursor = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class NewRate(_Asked, frozen=True):
    """A new rate in messages per second. Null means no limit."""

    rate: Rate | None


class RetryRequest(_Asked, frozen=True):
    """The reason for another attempt."""

    reason: _Reason


class LimitReason(_Asked, frozen=True):
    """The reason for lifting or restoring a delivery limit."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


class Edit(_Asked, frozen=True):
    """The changes in a copy of a message. None keeps the original value.

    `headers` are set, and `without` are removed. The headers of Hopback and of the broker cannot be
    edited. The body is base64 in JSON.
    """

    body: bytes | None = None
    content_type: _Name | None = None
    headers: dict[_Name, Any] = {}
    without: frozenset[_Name] = frozenset()


class EditRequest(_Asked, frozen=True, kw_only=True):
    """A request to send an edited copy of a message. The original stays in the queue."""

    edit: Edit
    reason: _Reason
    target: Target = BY_DESIGN


class NotesQuery(_Asked, frozen=True, omit_defaults=True):
    """The group of failures. If it is empty, all groups of the queue are selected."""

    group: Annotated[str, Meta(max_length=64)] = ""


class AlertTestRequest(_Asked, frozen=True):
    """The target to which a test message is sent."""

    target: Annotated[str, Meta(min_length=1, max_length=100)]


class AuditQuery(_Asked, frozen=True, omit_defaults=True):
    """Which audit entries to list, newest first. Empty fields match all entries. `before` is the
    number of an entry.
    """

    by: _Name = ""
    action: _Name = ""
    queue: _Name = ""
    job: _Name = ""
    before: Annotated[int, Meta(ge=1, le=2**53)] | None = field(default=None, name="cursor")
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


NEWEST = AuditQuery()
"""The newest 100 entries."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits and switches of the process that runs the operations.

    `exports` is the folder for files of discarded messages. If it is None, every discard must
    specify a file. `editing` allows users to re-drive edited copies. A dry run reads up to `scan`
    messages, or up to `count_scan` messages if there is a filter. A job is interrupted if its
    broker is unavailable for `patience_s` seconds. After sending `per_turn` messages, a job lets
    other tasks of the process run.
    """

    exports: Path | None = None
    editing: bool = False
    scan: int = 1000
    count_scan: int = 100_000
    patience_s: float = 1800.0
    per_turn: int = 64
