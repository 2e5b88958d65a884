"""What a message tells of its past in our headers, read from whatever is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.headers import names
from hopback.headers.deaths import REMEMBERED_DEATHS, deaths, remembered_deaths
from hopback.headers.failure import failure_in
from hopback.headers.text import count_in, text_in

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.headers.deaths import Death
    from hopback.headers.failure import Failure

__all__ = ["History", "counter_in", "marked_queue", "read_history"]


class History:
    """Our headers of one message, for one queue; each is read when it is asked for.

    `attempts`, `snoozes` and `failure` hold only for the queue they were written for; for another
    queue they read as if they were not there.
    """

    __slots__ = ("_headers", "_here")

    def __init__(self, headers: Headers, queue: str) -> None:
        self._headers = headers
        self._here = marked_queue(headers) == queue

    @property
    def attempts(self) -> int:
        """The runs that failed so far."""
        return count_in(self._headers.get(names.ATTEMPTS)) if self._here else 0

    @property
    def snoozes(self) -> int:
        """How often it was snoozed."""
        return count_in(self._headers.get(names.SNOOZES)) if self._here else 0

    @property
    def failure(self) -> Failure | None:
        """The record of the last failure."""
        return failure_in(self._headers.get(names.FAILURE)) if self._here else None

    @property
    def lineage(self) -> str | None:
        """What all copies of this message have in common since its first failure here."""
        return text_in(self._headers.get(names.LINEAGE)) if self._here else None

    @property
    def redrives(self) -> int:
        """How often it was re-driven."""
        return count_in(self._headers.get(names.REDRIVES))

    @property
    def redrive_job(self) -> str | None:
        """The job that re-drove it last."""
        return text_in(self._headers.get(names.REDRIVE_JOB))

    @property
    def origin_exchange(self) -> str | None:
        """The exchange it was first published to."""
        return text_in(self._headers.get(names.ORIGIN_EXCHANGE))

    @property
    def origin_routing_key(self) -> str | None:
        """The routing key it was first published with."""
        return text_in(self._headers.get(names.ORIGIN_ROUTING_KEY))

    @property
    def origin_user(self) -> str | None:
        """The `user_id` it was first published with."""
        return text_in(self._headers.get(names.ORIGIN_USER))

    @property
    def deaths(self) -> tuple[Death, ...]:
        """The most recent deaths: the broker's record now, then what we remember; each once."""
        together = dict.fromkeys((*deaths(self._headers), *remembered_deaths(self._headers)))
        return tuple(together)[:REMEMBERED_DEATHS]


def read_history(headers: Headers, queue: str) -> History:
    """Our headers as they concern `queue`; what makes no sense reads as absent, never an error."""
    return History(headers, queue)


def marked_queue(headers: Headers) -> str | None:
    """The queue our counts were written for, if the message carries any."""
    return text_in(headers.get(names.QUEUE))


def counter_in(headers: Headers, name: str | None) -> int:
    """A design's own counter, 0 where there is none or it is no count."""
    return 0 if name is None else count_in(headers.get(name))
