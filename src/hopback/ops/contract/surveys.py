"""The errors of all queues and the depths of each over time."""

from __future__ import annotations

from msgspec import Struct, field

from hopback.ops.contract.values import Moment  # noqa: TC001  msgspec reads it at run time


class ErrorInQueue(Struct, frozen=True, rename="camel"):
    """How often an error stands in one queue."""

    queue: str
    count: int


class ErrorGroup(Struct, frozen=True, rename="camel", kw_only=True):
    """One error, in all queues; `first_seen_at` is when a survey met it for the first time.

    `is_new`: that was within the last day, while its queue was surveyed before already. `discarded` is how
    often it stands in the files of discards, by the queue the messages were in.
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
    """A file that a discard wrote, when it was read last, and how many messages of it."""

    file: str
    queue: str
    at: Moment
    seen: int


class SurveyedQueue(Struct, frozen=True, rename="camel", kw_only=True):
    """When a queue was surveyed last, how much of it, and why it is not surveyed, if it is not.

    `is_stream`: it was read without cost, and `seen` is all that was ever read of it.
    """

    queue: str
    at: Moment | None = None
    seen: int = 0
    ready: int = 0
    took_s: float = field(default=0.0, name="tookSeconds")
    why_not: str = ""
    is_stream: bool = False


class SurveyProgress(Struct, frozen=True, rename="camel"):
    """How far a survey is that runs: in which queue, and how many messages it has seen of all."""

    queue: str
    seen: int
    total: int


class ErrorOverview(Struct, frozen=True, rename="camel", kw_only=True):
    """The errors of all surveyed queues, the most frequent first.

    `archives` are the files of discards that were read. `survey_s` is how often queues are surveyed, None
    where that is not switched on; `running` is how far the survey is that runs in the process that answers.
    """

    items: tuple[ErrorGroup, ...] = ()
    queues: tuple[SurveyedQueue, ...] = ()
    archives: tuple[SurveyedArchive, ...] = ()
    messages: int = 0
    survey_s: float | None = field(default=None, name="surveySeconds")
    running: SurveyProgress | None = None


class TrendSample(Struct, frozen=True, rename="camel"):
    """How many messages a queue had at a moment."""

    at: Moment
    messages: int


class QueueTrend(Struct, frozen=True, rename="camel"):
    """The depth of a queue, the oldest first: every hour of a month, every five minutes of a day.

    `arrived` is by how much it grew in the last day, all growth added up: at least so many arrived.
    """

    queue: str
    samples: tuple[TrendSample, ...] = ()
    arrived: int = 0
