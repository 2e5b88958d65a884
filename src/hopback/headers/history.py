"""What a message tells of its past in our headers, read from whatever is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.headers import names
from hopback.headers.deaths import REMEMBERED_DEATHS, deaths, remembered_deaths
from hopback.headers.failure import failure_in, failure_text_in
from hopback.headers.text import count_in, text_in

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.headers.deaths import Death
    from hopback.headers.failure import Failure

__all__ = [
    "History",
    "broker_failures",
    "counter_in",
    "entered_by",
    "marked_queue",
    "read_history",
]

_COUNTED = frozenset({"rejected", "delivery_limit"})


class History:
    """Our headers of one message, for one queue; each is read when it is asked for.

    `attempts`, `snoozes` and `failure` hold only for the queue they were written for; for another
    queue they read as if they were not there.
    """

    __slots__ = ("_deaths", "_headers", "_here", "marked_queue", "queue")

    def __init__(self, headers: Headers, queue: str) -> None:
        self._headers = headers
        self.queue: str = queue
        self.marked_queue: str | None = marked_queue(headers)
        self._here = self.marked_queue == queue
        self._deaths: tuple[Death, ...] | None = None

    @property
    def headers(self) -> Headers:
        """What all of this is read from."""
        return self._headers

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

    def failure_text(self) -> str | None:
        """The record of the last failure as it stands, if it may go on so."""
        return failure_text_in(self._headers.get(names.FAILURE)) if self._here else None

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
        if not self._headers:
            return ()
        known = (*self.broker_deaths, *remembered_deaths(self._headers))
        return tuple(dict.fromkeys(known))[:REMEMBERED_DEATHS] if known else ()

    @property
    def broker_deaths(self) -> tuple[Death, ...]:
        """The broker's record now; read once."""
        if self._deaths is None:
            self._deaths = deaths(self._headers)
        return self._deaths

    @property
    def broker_failures(self) -> int:
        """How often the broker took the message from this queue because its handling failed."""
        return sum(
            death.count
            for death in self.broker_deaths
            if death.queue == self.queue and death.reason in _COUNTED
        )

    @property
    def entered_by(self) -> tuple[str, str] | None:
        """Exchange and routing key by which it came to this queue before its first death there."""
        for death in self.broker_deaths:
            if death.queue == self.queue and death.routing_keys:
                return death.exchange, death.routing_keys[0]
        return None


def read_history(headers: Headers, queue: str) -> History:
    """Our headers as they concern `queue`; what makes no sense reads as absent, never an error."""
    return History(headers, queue)


def broker_failures(headers: Headers, queue: str) -> int:
    """How often the broker took the message from `queue` because its handling failed."""
    return History(headers, queue).broker_failures


def entered_by(headers: Headers, queue: str) -> tuple[str, str] | None:
    """Exchange and routing key by which the message came to `queue` before its first death there."""
    return History(headers, queue).entered_by


def marked_queue(headers: Headers) -> str | None:
    """The queue our counts were written for, if the message carries any."""
    return text_in(headers.get(names.QUEUE))


def counter_in(headers: Headers, name: str | None) -> int:
    """A design's own counter, 0 where there is none or it is no count."""
    return 0 if name is None else count_in(headers.get(name))
