"""The rules, alerts and notices in the contract."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  msgspec reads it at run time
from enum import StrEnum
from typing import Annotated, TypeAlias
from urllib.parse import quote

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from hopback.broker.named_brokers import broker_path
from hopback.ops.contract.values import Moment  # noqa: TC001  msgspec reads it at run time
from hopback.text import text_matches

_Name = Annotated[str, Meta(min_length=1, max_length=100)]
_Pattern = Annotated[str, Meta(min_length=1, max_length=255)]
_Seconds = Annotated[float, Meta(ge=0, le=30 * 86_400)]
AlertKey: TypeAlias = tuple[str, str, str, str]
"""Identifies an alert by rule, broker, queue and subject."""


class AlertKind(StrEnum):
    """The condition of a rule."""

    DEPTH = "depth"
    """A dead-letter queue contains more than `above` messages."""
    GROWTH = "growth"
    """It has grown by more than `above` messages within `within_seconds`."""
    NEW_FINGERPRINT = "new-fingerprint"
    """It contains an error that was first seen within `within_seconds`."""
    OLDEST_AGE = "oldest-age"
    """Its oldest message failed more than `older_than_seconds` ago. If this is unknown, the time
    since the queue was empty is used.
    """
    JOB_STOPPED = "job-stopped"
    """A re-drive or a discard has failed or was interrupted, and can be resumed."""
    HELD_BACK = "held-back"
    """The broker holds back more than `above` messages on their way to the queue or back to its origins."""
    CONSUMER_GONE = "consumer-gone"
    """A queue whose messages are dead-lettered to this queue has lost its consumers."""


class AlertRule(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule for dead-letter queues. In the patterns of `queues`, `*` matches any characters.

    `broker` limits the rule to one broker. The condition must be met for `for_seconds` until the
    alert fires. Notices are sent to `targets`, or to all targets if there are none. `quiet`
    overrides the general quiet times.
    """

    name: _Name
    kind: AlertKind
    queues: tuple[_Pattern, ...] = ("*",)
    broker: Annotated[str, Meta(max_length=100)] = ""
    above: Annotated[int, Meta(ge=0)] = 0
    within_seconds: Annotated[float, Meta(ge=10, le=30 * 86_400)] = 600.0
    older_than_seconds: _Seconds = 3600.0
    for_seconds: _Seconds = 0.0
    targets: tuple[_Name, ...] = ()
    quiet: tuple[str, ...] | None = None

    def covers(self, broker: str, queue: str) -> bool:
        """Return whether the rule applies to a queue."""
        if self.broker and broker != self.broker:
            return False
        return any(text_matches(pattern, queue) for pattern in self.queues)


class AlertState(StrEnum):
    PENDING = "pending"
    """The condition is met, but not for long enough yet."""
    FIRING = "firing"
    RESOLVED = "resolved"


class ToldState(Struct, frozen=True, rename="camel"):
    """The last notice about an alert that was created for a target."""

    state: AlertState
    at: Moment


class Alert(Struct, frozen=True, rename="camel", kw_only=True):
    """A condition that is met, or was met until `resolved_at`. `url` is the path of its page.

    `subject` distinguishes several alerts for the same queue. It is a job, a fingerprint or an
    origin. `told` contains the last notice for each target.
    """

    id: str
    rule: str
    kind: AlertKind
    broker: str = ""
    queue: str
    subject: str = ""
    state: AlertState
    text: str
    since: Moment
    fired_at: Moment | None = None
    resolved_at: Moment | None = None
    told: Mapping[str, ToldState] = field(default_factory=dict)
    url: str = ""

    def __post_init__(self) -> None:
        way = f"/jobs/{quote(self.subject, safe='')}"
        if self.kind is not AlertKind.JOB_STOPPED:
            way = f"/queues/{quote(self.queue, safe='')}"
        force_setattr(self, "url", (broker_path(self.broker) if self.broker else "") + way)

    @property
    def key(self) -> AlertKey:
        """The identity of the condition. At most one unresolved alert has the same key."""
        return self.rule, self.broker, self.queue, self.subject


class AlertNotice(Struct, frozen=True, rename="camel"):
    """A message to a target. `more` is the number of alerts that it does not include.

    All attempts to send it have the same `id`, so that receivers can detect duplicates.
    """

    id: str
    target: str
    created_at: Moment
    firing: tuple[Alert, ...] = ()
    resolved: tuple[Alert, ...] = ()
    more: int = 0
    is_test: bool = False


class AlertTargetView(Struct, frozen=True, rename="camel"):
    """A target without its address and secrets."""

    name: str
    kind: str
    waiting: int = 0
    sent_at: Moment | None = None
    problem: str = ""


class AlertList(Struct, frozen=True, rename="camel"):
    """The alerts of all queues that the caller can view, firing first. Rules and targets are only
    included for admins.
    """

    items: tuple[Alert, ...]
    total: int
    rules: tuple[AlertRule, ...] = ()
    targets: tuple[AlertTargetView, ...] = ()


class AlertTestResult(Struct, frozen=True, rename="camel"):
    """Whether a target has accepted a test notice. If not, `problem` is the reason."""

    target: str
    delivered: bool
    problem: str = ""
