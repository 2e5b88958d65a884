"""The events emitted by Hopback.

Logs, Prometheus metrics and OpenTelemetry traces are all based on these events. `EVENTS` lists
their names, their fields and when they are emitted. Events never contain payloads or secrets.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["EVENTS", "Bus", "EventDescription", "RunTally", "Subscriber", "reporter"]

_LOG = logging.getLogger("hopback.observe")

reporter: ContextVar[Callable[[str, Mapping[str, Any]], None]] = ContextVar("hopback_reporter")
"""The function used to emit events from code that does not have access to the service. It may be
called from the thread of a handler.
"""

Subscriber: TypeAlias = "Callable[[str, Mapping[str, Any]], None]"
"""A function called with the name and fields of each event. It runs on the event loop and must not
block.
"""


@dataclass(frozen=True, slots=True)
class EventDescription:
    """The description of an event. `fields` are always present."""

    name: str
    when: str
    fields: tuple[str, ...]


_MESSAGE = (
    "queue",
    "routing_key",
    "message_id",
    "message_type",
    "correlation_id",
    "attempt",
    "max_attempts",
)
_DELIVERY = (*_MESSAGE, "duration")
_FAILED = (*_DELIVERY, "reason", "error", "fingerprint")

_ROWS = (
    EventDescription("delivery.done", "A handler finished and its delivery was acked.", _DELIVERY),
    EventDescription(
        "delivery.retried",
        "A failed message went to a retry queue.",
        (*_FAILED, "tier", "delay_ms", "asked_ms"),
    ),
    EventDescription(
        "delivery.parked",
        "A message was parked in the dead-letter queue.",
        (*_FAILED, "dead_letter_queue", "exhausted"),
    ),
    EventDescription(
        "delivery.snoozed",
        "A message waits. No attempt is counted.",
        (*_DELIVERY, "delay_ms", "asked_ms"),
    ),
    EventDescription(
        "delivery.held",
        "A step before settlement failed. The message stays unsettled and the step is repeated.",
        (*_FAILED, "retry_in"),
    ),
    EventDescription(
        "delivery.abandoned",
        "The channel closed before settlement. The broker redelivers the message.",
        (*_DELIVERY, "reason"),
    ),
    EventDescription(
        "delivery.copy",
        "A second copy of a handled message was acked without a run.",
        _DELIVERY,
    ),
    EventDescription(
        "inbox.duplicate",
        "A handler asked the inbox about a message that was already handled.",
        ("consumer", "key", "queue", "routing_key", "message_id", "message_type"),
    ),
    EventDescription(
        "handler.failed",
        "A handler raised. Emitted for the 1st, 10th, 100th … error of a fingerprint in a queue.",
        (*_MESSAGE, "error", "fingerprint", "runs", "traceback"),
    ),
    EventDescription(
        "handler.overdue",
        "A handler exceeded its deadline. A thread cannot be stopped and is only reported.",
        ("queue", "message_id", "duration", "deadline", "stopped"),
    ),
    EventDescription(
        "handler.slow",
        "A handler has not returned for 5 minutes, its longer deadline, or half of the known consumer"
        " timeout. Reported once per run.",
        ("queue", "message_id", "duration", "stack"),
    ),
    EventDescription(
        "delivery.taken_back",
        "The broker requeued a message during its run (consumer timeout), or was about to. The handler is"
        " cancelled, except in a thread.",
        ("queue", "message_id", "duration", "stopped", "stack"),
    ),
    EventDescription(
        "publish.failed", "A publish was not confirmed.", ("exchange", "routing_key", "error")
    ),
    EventDescription(
        "delay.sent",
        "A delayed message was due and was sent.",
        ("queue", "exchange", "routing_key", "message_id", "late"),
    ),
    EventDescription(
        "delay.early",
        "A delayed message arrived early because a level was missing or shortened. It waits again.",
        ("queue", "exchange", "routing_key", "message_id", "left", "laps"),
    ),
    EventDescription(
        "delay.cancelled",
        "A delayed message was due but not sent, because it had been cancelled.",
        ("queue", "exchange", "routing_key", "message_id"),
    ),
    EventDescription(
        "periodic.sent",
        "A periodic message was due and was sent.",
        ("queue", "message_id", "late"),
    ),
    EventDescription(
        "periodic.clock",
        "The clock of a sender of periodic messages jumped, returned after a jump, or was behind the"
        " recorded progress.",
        ("queue", "seconds", "reason"),
    ),
    EventDescription(
        "consumer.started", "A consumer started.", ("queue", "prefetch", "concurrency")
    ),
    EventDescription(
        "consumer.lost",
        "The broker cancelled a consumer. The service restores it.",
        ("queue", "reason"),
    ),
    EventDescription(
        "consumer.paused",
        "Consumption of a queue was paused.",
        ("queue", "reason", "by", "until"),
    ),
    EventDescription(
        "consumer.resumed",
        "A pause of a queue has ended. Consumption resumes if no other pause remains.",
        ("queue", "reason", "by"),
    ),
    EventDescription(
        "consumer.removed",
        "An application was removed from a running service. Its queue is no longer consumed.",
        ("queue",),
    ),
    EventDescription(
        "quarantine.begun",
        "A message that was returned repeatedly runs alone in its queue.",
        ("queue", "message_id", "deaths"),
    ),
    EventDescription(
        "connection.state", "A connection changed its state.", ("purpose", "state", "reason")
    ),
    EventDescription(
        "batch.handled", "A batch was handled.", ("queue", "size", "failed", "duration", "splits")
    ),
    EventDescription(
        "shutdown.step", "Shutdown reached a numbered step.", ("step", "title", "left")
    ),
    EventDescription(
        "topology.warning",
        "The declared topology has a hazard. Reported once.",
        ("rule", "place", "text"),
    ),
    EventDescription(
        "topology.restored",
        "A declared queue or exchange was missing at run time and was created again.",
        ("object",),
    ),
    EventDescription(
        "topology.unusable",
        "A declared queue or exchange is missing or differs, and cannot be created. Reported once.",
        ("object", "reason"),
    ),
)

EVENTS: Mapping[str, EventDescription] = MappingProxyType({row.name: row for row in _ROWS})


class RunTally:
    """A histogram of run durations, and their sum.

    It counts successful runs, so no event has to be emitted for each of them.
    """

    __slots__ = ("counts", "seconds", "steps")

    def __init__(self, steps: tuple[float, ...]) -> None:
        self.steps: tuple[float, ...] = steps
        self.counts: list[int] = [0] * (len(steps) + 1)
        """The number of runs per bucket. The last bucket is for runs longer than the last step."""
        self.seconds: float = 0.0

    def add(self, duration: float) -> None:
        """Add a run with the given duration in seconds."""
        self.counts[bisect_left(self.steps, duration)] += 1
        self.seconds += duration


class Bus:
    """Dispatches events to subscribers.

    A subscriber that raises an exception is removed. Subscribers may implement two optional
    methods:

    - `wants(name)`: return True for the events to receive.
    - `tally(queue)`: return a `RunTally` that counts the successful runs of a queue. If all
      subscribers of `delivery.done` have this method, the event is not emitted.
    """

    __slots__ = ("_listeners", "_subscribers", "_tallies", "dropped")

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers: list[Subscriber] = list(subscribers)
        self._listeners: dict[str, tuple[Subscriber, ...]] = {}
        self._tallies: dict[str, tuple[RunTally, ...] | None] = {}
        self.dropped: list[tuple[Subscriber, Exception]] = []

    @property
    def active(self) -> bool:
        """Whether there are subscribers."""
        return bool(self._subscribers)

    def has_listener(self, name: str) -> bool:
        """Return True if an event has subscribers. Otherwise its fields don't have to be built."""
        return bool(self._listeners_of(name))

    def tallies(self, queue: str) -> tuple[RunTally, ...] | None:
        """Return the tallies for successful runs of the queue.

        Returns None if `delivery.done` has to be emitted instead.
        """
        try:
            return self._tallies[queue]
        except KeyError:
            asked = [getattr(one, "tally", None) for one in self._listeners_of("delivery.done")]
            found = None if None in asked else tuple(tally(queue) for tally in asked if tally)
            self._tallies[queue] = found
            return found

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a subscriber."""
        self._subscribers.append(subscriber)
        self._forget()

    def emit(self, name: str, fields: Mapping[str, Any]) -> None:
        """Send an event to its subscribers."""
        for subscriber in self._listeners_of(name):
            try:
                subscriber(name, fields)
            except Exception as error:  # a broken subscriber must not affect message processing
                if subscriber in self._subscribers:
                    self._subscribers.remove(subscriber)
                    self._forget()
                    self.dropped.append((subscriber, error))
                    _LOG.error(
                        "subscriber %r raised an error and was removed", subscriber, exc_info=error
                    )

    def _listeners_of(self, name: str) -> tuple[Subscriber, ...]:
        found = self._listeners.get(name)
        if found is None:
            found = tuple(
                one
                for one in self._subscribers
                if (wants := getattr(one, "wants", None)) is None or wants(name)
            )
            self._listeners[name] = found
        return found

    def _forget(self) -> None:
        """Clear the caches."""
        self._listeners.clear()
        self._tallies.clear()
