"""The requests of operators: frozen values with their defaults and bounds.

Bounds and defaults are defined only here. `codec` refuses unknown fields. The answers are in `values`.
`Settings` contains the limits of the process that runs the operations.
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
"""Messages per second. No broker confirms as many, so the limit only stops mistakes."""
LONGEST_WATCH_S = 86_400
"""Seconds between two stages of a ramp: one day. A longer wait is a mistake."""
LONGEST_FOUND_WATCH_S = 480
"""Longest wait that a job chooses itself, in seconds. Three end before the consumer timeout (30 min)."""
MOST_HELD = 10_000
"""Messages of one browse session. A process has memory for them. Larger requests are refused."""
LARGEST_PAGE = 200
"""Messages of one answer. A client asks for more page by page."""
MOST_IN_FLIGHT = 10_000
"""Unconfirmed messages of one job. Broker and process have memory for them. Larger requests are refused."""
MOST_REDRIVES = 1000
"""Largest number of earlier re-drives of a message. A higher limit would not stop a loop."""
RAMP = (1, 5, 25)
"""The stages of a careful start: one message, five, twenty-five, then the rest.

The page proposes a ramp, because an operator checks the first messages anyway. The default of `Pace` has no
ramp: scripts that call the API, the library or the command wait for the end of a job.
"""

_LONGEST_PAUSE_S = 30.0  # seconds between two tries of a message. Most alarms end earlier.
_MOST_STEPS = 50  # steps of a change. Each runs for every message and is shown in the review.
_MOST_DOUBLINGS = 16  # doublings of a pause. It has reached the longest one by then.

_Stages = Annotated[tuple[Annotated[int, Meta(ge=1, le=1_000_000)], ...], Meta(max_length=20)]
Rate = Annotated[float, Meta(gt=0, le=HIGHEST_RATE)]
# A name in AMQP has at most 255 bytes.
_Name = Annotated[str, Meta(max_length=255)]
_QueueName = Annotated[str, Meta(min_length=1, max_length=255)]
# One line of the audit.
_Reason = Annotated[str, Meta(min_length=1, max_length=1000)]
# A page of terms. Longer filters are mistakes.
_FilterText = Annotated[str, Meta(max_length=4096)]
_Cursor = Annotated[int, Meta(ge=0, le=2**31)]
_Ids = Annotated[tuple[_Name, ...], Meta(max_length=2000)]

LONGEST_SESSION_S = 1500
"""Seconds from the opening of a browse session to its end. The consumer timeout of a broker is 30 min."""
_SessionSeconds = Annotated[float, Meta(ge=1, le=LONGEST_SESSION_S)]
_SessionMessages = Annotated[int, Meta(ge=1, le=MOST_HELD)]
# Messages. A search reads as many.
_Skipped = Annotated[int, Meta(ge=0, le=5_000_000)]
_SessionBytes = Annotated[int, Meta(ge=1, le=256 * 1024 * 1024)]


class _Asked(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of a request. Unknown fields are refused."""


class Who(Struct, frozen=True, rename="camel"):
    """The person or program that acts: a permanent id and a display name."""

    id: str = ""
    name: str = ""


NOBODY = Who()
"""An unnamed caller, for example a script."""


class TargetKind(StrEnum):
    """The kinds of targets of a re-drive."""

    DESIGN = "design"
    """The target in the plan of the queue. Without a plan, the queue that failed."""
    FAILED_QUEUE = "failed-queue"
    RETRY_EXCHANGE = "retry-exchange"
    ORIGIN_EXCHANGE = "origin-exchange"
    """The exchange of the first publish. Every other queue that is bound to it gets the message again."""
    QUEUE = "queue"
    EXCHANGE = "exchange"


class Target(_Asked, frozen=True):
    """The target of a re-drive. `reset` restarts the count of attempts. None leaves that to the plan."""

    kind: TargetKind = TargetKind.DESIGN
    exchange: _Name = ""
    routing_key: _Name = ""
    reset: bool | None = None

    @property
    def warning(self) -> str:
        """A warning for operators who choose it."""
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
"""The target in the design."""


class GroupBy(StrEnum):
    """The properties by which dead letters are grouped."""

    FINGERPRINT = "fingerprint"
    REASON = "reason"
    ORIGIN = "origin"
    TYPE = "type"
    ERROR = "error"


class SessionRequest(_Asked, frozen=True):
    """How many messages a session holds, and for how long.

    The first `skip` messages are passed over. The broker holds them until the session ends, and this process
    does not keep them. `force` accepts the danger of looking, `lift` removes it by a policy.
    """

    limit: _SessionMessages = 100
    max_bytes: _SessionBytes = 64 * 1024 * 1024
    seconds: _SessionSeconds = field(default=300.0, name="ttlSeconds")
    skip: _Skipped = 0
    force: bool = False
    lift: bool = False


USUAL_SESSION = SessionRequest()
"""A hundred messages for five minutes."""


class Renewal(_Asked, frozen=True):
    """The time by which a session is extended. None is its original time."""

    seconds: _SessionSeconds | None = field(default=None, name="ttlSeconds")


class MessagesQuery(_Asked, frozen=True, omit_defaults=True):
    """A filter and a page of dead letters."""

    where: _FilterText = field(default="", name="filter")
    cursor: _Cursor = 0
    limit: Annotated[int, Meta(ge=1, le=LARGEST_PAGE)] = 20


class GroupQuery(_Asked, frozen=True, omit_defaults=True):
    """A grouping. `by` is one of `GroupBy`, `header.NAME` or `payload.PATH`."""

    by: Annotated[str, Meta(max_length=512)] = GroupBy.FINGERPRINT.value
    where: _FilterText = field(default="", name="filter")


class Pace(_Asked, frozen=True):
    """The speed of a job and its checks for returned messages.

    `rate` is in messages per second. None is without a limit. Between the stages of `ramp` the job waits
    `watch_s` seconds and stops if more than `max_returned` messages return. None waits as long as the
    retries of the design take, at most eight minutes. A refused message is sent `tries` times before the
    job stops. The pauses between the tries grow from `pause_s` seconds.
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
        """Seconds to wait before the next attempt."""
        return min(self.pause_s * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS), _LONGEST_PAUSE_S)

    def stage_ends(self) -> frozenset[int]:
        """The numbers of sent messages at which the job waits for returned messages."""
        sums, total = [], 0
        for size in self.ramp:
            total += size
            sums.append(total)
        return frozenset(sums)


UNHURRIED = Pace()
"""Without a rate and without a ramp."""


class Selection(_Asked, frozen=True, kw_only=True):
    """Messages of one dead-letter queue, and their number once they were counted.

    Without a `session` these are the first `limit` messages of the queue: by default, all messages that
    are ready when they are counted. With a `session` they are the messages `ids` that this browse session
    holds, or all of its messages. `filter` leaves out messages that do not match. A family, or group, of
    failures is the filter `group:FINGERPRINT`.

    A plan returns the selection with `queue`, `limit` and `count` set: a job that starts with it moves
    no message that arrived after the plan. `count` is the number of messages that match. It is exact
    unless `estimate` gives the reason why it is not. `last_digest` is the digest of the last message that the
    plan has read, and `place` its position in the queue: from its new position the start of the job knows
    how many messages have left the queue since.
    """

    session: _Name = ""
    ids: _Ids = ()
    filter: Annotated[
        _FilterText,
        option("--filter", "TERMS", "Only messages that match all terms, as in 'age>2h'."),
    ] = ""
    limit: Annotated[
        Annotated[int, Meta(ge=0, le=10_000_000)] | None,
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
        """Whether a plan has counted it."""
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
    """The messages to export. `force` accepts that looking could lose messages."""

    selection: Selection = WHOLE_QUEUE
    force: bool = False


class ImportQuery(_Asked, frozen=True, omit_defaults=True):
    """The reason of an import."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


class PatchOperation(Struct, frozen=True, forbid_unknown_fields=True):
    """One step: `add`, `replace` or `remove` the value at `path`, or `test` that it equals `value`.

    A path is a JSON pointer like `/order/lines/0/sku`. In a name, `~1` is a slash and `~0` a tilde. `-` at
    the end is the position after the last item of a list. All operations except `remove` need a `value`.
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
"""A JSON patch (RFC 6902): the steps of a change in order."""


class JobKind(StrEnum):
    """The action of a job on its messages."""

    REDRIVE = "re-drive"
    DISCARD = "discard"


class _JobRequest(_Asked, frozen=True, kw_only=True, tag_field="kind"):
    """The fields of every request for a job.

    A job starts only if its selection has `expected_count` messages. None accepts every number. `force`
    accepts the cost of looking. `dry_run` asks a server for the plan instead of the job.
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

    Messages that were re-driven `max_redrives` times are left out. 0 means no limit. `change` changes each
    body before it is sent. The originals are written to a file first.
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
    """Remove messages of a dead-letter queue for good.

    `confirm` repeats the queue's name. Each message is written to a file before it is removed, unless
    `export` is False.
    """

    kind: ClassVar[JobKind] = JobKind.DISCARD
    confirm: _Name = ""
    export: Annotated[
        bool, option("--no-export", "", "Do not write the messages to a file: they are lost.")
    ] = True


JobRequest: TypeAlias = RedriveRequest | DiscardRequest
"""A request for a job. Command, HTTP, page and journal use this form."""


class Submission(_Asked, frozen=True, kw_only=True):
    """Facts about a job that its caller knows. A request from another machine cannot contain them.

    A second submission with the same `key` finds the first job. `operation` is the correlation id of the
    sent messages, by default the job's id. `stamped` also writes the `x-redriven-…` headers. None leaves
    that to the design. `export_to` is the file to which a discard writes. If it is empty, the file is named
    after the job and is in the folder of exports. A name that ends in `.zst` is compressed.
    """

    key: str | None = None
    operation: str = ""
    stamped: bool | None = None
    export_to: str = ""


BY_CALLER = Submission()
"""A submission without a key."""


class JobsQuery(_Asked, frozen=True, omit_defaults=True):
    """The jobs to list."""

    queue: _Name = ""
    active: bool = False
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class FailuresQuery(_Asked, frozen=True, omit_defaults=True):
    """The failures of a job to list, from number `cursor` on."""

    cursor: _Cursor = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class NewRate(_Asked, frozen=True):
    """A new rate in messages per second. Null is without a limit."""

    rate: Rate | None


class RetryRequest(_Asked, frozen=True):
    """The reason of another try."""

    reason: _Reason


class LimitReason(_Asked, frozen=True):
    """The reason for which a delivery limit is lifted or restored."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


class Edit(_Asked, frozen=True):
    """The changes in a copy of a message. None keeps the value of the original.

    `headers` are set, `without` are removed. The headers of Hopback and of the broker cannot be edited. In
    JSON the body is base64.
    """

    body: bytes | None = None
    content_type: _Name | None = None
    headers: dict[_Name, Any] = {}
    without: frozenset[_Name] = frozenset()


class EditRequest(_Asked, frozen=True, kw_only=True):
    """A changed copy that is sent back. The original stays in the queue."""

    edit: Edit
    reason: _Reason
    target: Target = BY_DESIGN


class NotesQuery(_Asked, frozen=True, omit_defaults=True):
    """A group of failures. Empty for all groups of the queue."""

    group: Annotated[str, Meta(max_length=64)] = ""


class AlertTestRequest(_Asked, frozen=True):
    """The target that gets a test message."""

    target: Annotated[str, Meta(min_length=1, max_length=100)]


class AuditQuery(_Asked, frozen=True, omit_defaults=True):
    """The entries of the audit to list, the newest first. Empty fields match all. `before` is a number."""

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
    """Limits and switches of the process that runs the operations.

    `exports` is the folder for the files of discards. If it is None, every discard has to name a file.
    `editing` allows re-drives of changed copies. A dry run reads at most `scan` messages, with a filter at
    most `count_scan` messages. A job is interrupted if its broker is unavailable for `patience_s` seconds.
    After `per_turn` sent messages other tasks of the process run.
    """

    exports: Path | None = None
    editing: bool = False
    scan: int = 1000
    count_scan: int = 100_000
    patience_s: float = 1800.0
    per_turn: int = 64
