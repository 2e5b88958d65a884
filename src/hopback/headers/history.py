"""What a message tells of its past in our headers, read from whatever is there."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class History:
    """Our headers of one message, for one queue.

    `attempts`, `snoozes` and `failure` hold only for the queue they were written for; for another
    queue they read as if they were not there. `deaths` are the most recent ones, ours and the
    broker's together.
    """

    attempts: int = 0
    snoozes: int = 0
    failure: Failure | None = None
    redrives: int = 0
    redrive_job: str | None = None
    origin_exchange: str | None = None
    origin_routing_key: str | None = None
    origin_user: str | None = None
    deaths: tuple[Death, ...] = ()


def read_history(headers: Headers, queue: str) -> History:
    """Our headers as they concern `queue`; what makes no sense reads as absent, never an error."""
    here = marked_queue(headers) == queue
    return History(
        attempts=count_in(headers.get(names.ATTEMPTS)) if here else 0,
        snoozes=count_in(headers.get(names.SNOOZES)) if here else 0,
        failure=failure_in(headers.get(names.FAILURE)) if here else None,
        redrives=count_in(headers.get(names.REDRIVES)),
        redrive_job=text_in(headers.get(names.REDRIVE_JOB)),
        origin_exchange=text_in(headers.get(names.ORIGIN_EXCHANGE)),
        origin_routing_key=text_in(headers.get(names.ORIGIN_ROUTING_KEY)),
        origin_user=text_in(headers.get(names.ORIGIN_USER)),
        deaths=_known_deaths(headers),
    )


def marked_queue(headers: Headers) -> str | None:
    """The queue our counts were written for, if the message carries any."""
    return text_in(headers.get(names.QUEUE))


def counter_in(headers: Headers, name: str | None) -> int:
    """A design's own counter, 0 where there is none or it is no count."""
    return 0 if name is None else count_in(headers.get(name))


def _known_deaths(headers: Headers) -> tuple[Death, ...]:
    """The broker's record now, then what we remember of earlier ones; each once."""
    together = dict.fromkeys((*deaths(headers), *remembered_deaths(headers)))
    return tuple(together)[:REMEMBERED_DEATHS]
