"""The errors in all queues, and the depths of queues over time."""

from __future__ import annotations

from msgspec import Struct, field

from hopback.ops.contract.values import (  # noqa: TC001  msgspec reads them at run time
    HeldMessages,
    LookProgress,
    Moment,
)


class HourCount(Struct, frozen=True, rename="camel"):
    """The number of messages whose last failure was in the hour starting at this time."""

    at: Moment
    count: int


class ErrorInQueue(Struct, frozen=True, rename="camel"):
    """How many messages of a queue have an error.

    `by_hour` only counts failures within 48 hours before the survey. It does not include hours
    without failures or messages without a recorded time.
    """

    queue: str
    count: int
    by_hour: tuple[HourCount, ...] = ()


class ErrorGroup(Struct, frozen=True, rename="camel", kw_only=True):
    """An error in all queues. `first_seen` is the time of the first survey that has found it.

    `is_new` is True if the error was first found within the last day, although its queues had been
    surveyed before. `discarded` counts the discarded messages with this error by queue.
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
    """A file of discarded messages, with the time of its last survey and the number of its messages."""

    file: str
    queue: str
    at: Moment
    seen: int


class SurveyedQueue(Struct, frozen=True, rename="camel", kw_only=True):
    """The last survey of a queue. `why_not` explains why the queue cannot be surveyed now.

    `held` are messages that the survey could not read because other consumers held them. For a
    stream, `seen` counts the messages of all surveys.
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
    """The errors of all surveyed queues, most frequent first.

    `archives` are the surveyed files of discarded messages. `survey_s` is the time between two
    automatic surveys, or None if there are none. `running` is the progress of a survey that is
    running in the same process.
    """

    items: tuple[ErrorGroup, ...] = ()
    queues: tuple[SurveyedQueue, ...] = ()
    archives: tuple[SurveyedArchive, ...] = ()
    messages: int = 0
    survey_s: float | None = field(default=None, name="surveySeconds")
    running: LookProgress | None = None


class TrendSample(Struct, frozen=True, rename="camel"):
    """The number of messages in a queue at a certain time."""

    at: Moment
    messages: int


class QueueTrend(Struct, frozen=True, rename="camel"):
    """The depth of a queue over time, oldest first.

    There is a sample for every hour of the last month, and for every five minutes of the last day.
    `arrived` is the sum of all increases in the last day, which is the minimum number of arrived
    messages.
    """

    queue: str
    samples: tuple[TrendSample, ...] = ()
    arrived: int = 0
