"""The errors of all queues, and the depth of each queue over time."""

from __future__ import annotations

from msgspec import Struct, field

from hopback.ops.contract.values import (  # noqa: TC001  msgspec reads them at run time
    HeldMessages,
    LookProgress,
    Moment,
)


class HourCount(Struct, frozen=True, rename="camel"):
    """The number of messages whose last failure was in the hour that begins at this time."""

    at: Moment
    count: int


class ErrorInQueue(Struct, frozen=True, rename="camel"):
    """The number of messages with an error in one queue.

    `by_hour` counts those that failed within the 48 hours before the survey. Hours without a failure and
    messages without a recorded time are left out.
    """

    queue: str
    count: int
    by_hour: tuple[HourCount, ...] = ()


class ErrorGroup(Struct, frozen=True, rename="camel", kw_only=True):
    """One error in all queues. `first_seen` is the time of the first survey that found it.

    `is_new` is True if that was within the last day and its queues were surveyed before. `discarded` counts
    the discarded messages with this error by their queue.
    """

    fingerprint: str
    error: str
    message: str
    reason: str
    count: int
    queues: tuple[ErrorInQueue, ...] = ()
    first: Moment | None = field(default=None, name="firstAt")
    last: Moment | None = field(default=None, name="lastAt")
    first_seen: Moment | None = field(default=None, name="firstSeenAt")
    is_new: bool = False
    discarded: tuple[ErrorInQueue, ...] = ()


class SurveyedArchive(Struct, frozen=True, rename="camel", kw_only=True):
    """A file of a discard, with the time of its last survey and the number of its messages."""

    file: str
    queue: str
    at: Moment
    seen: int


class SurveyedQueue(Struct, frozen=True, rename="camel", kw_only=True):
    """The last survey of a queue. `why_not` is the reason why the queue is not surveyed now.

    `held` are the messages that the survey could not read because other consumers held them. Of a stream,
    `seen` counts the messages of all surveys.
    """

    queue: str
    at: Moment | None = None
    seen: int = 0
    ready: int = 0
    took_s: float = field(default=0.0, name="tookSeconds")
    why_not: str = ""
    held: tuple[HeldMessages, ...] = ()
    is_stream: bool = False


class ErrorOverview(Struct, frozen=True, rename="camel", kw_only=True):
    """The errors of all surveyed queues, the most frequent first.

    `archives` are the surveyed files of discards. `survey_s` is the time between two surveys, None if they
    run only on request. `running` is the progress of a survey in the answering process.
    """

    items: tuple[ErrorGroup, ...] = ()
    queues: tuple[SurveyedQueue, ...] = ()
    archives: tuple[SurveyedArchive, ...] = ()
    messages: int = 0
    survey_s: float | None = field(default=None, name="surveySeconds")
    running: LookProgress | None = None


class TrendSample(Struct, frozen=True, rename="camel"):
    """The number of messages in a queue at a time."""

    at: Moment
    messages: int


class QueueTrend(Struct, frozen=True, rename="camel"):
    """The depth of a queue, the oldest first: every hour of a month, every five minutes of a day.

    `arrived` is the sum of all growth in the last day: the smallest possible number of arrived messages.
    """

    queue: str
    samples: tuple[TrendSample, ...] = ()
    arrived: int = 0
