"""Records the events of an application and provides assertions about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopback.observe.events import EVENTS
from hopback.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Happening:
    """An event that was emitted during a test. `at` is in seconds since the epoch."""

    name: str
    fields: Mapping[str, Any]
    at: float

    def fits(self, name: str, wanted: Mapping[str, Any]) -> bool:
        """Return True if the event has the given name and fields. `reason` only has to contain the
        given text.
        """
        return self.name == name and all(
            value in str(self.fields.get(field))
            if field == "reason"
            else self.fields.get(field) == value
            for field, value in wanted.items()
        )

    @property
    def summary(self) -> str:
        """A short description with the name, attempt and reason."""
        reason, attempt = self.fields.get("reason"), self.fields.get("attempt")
        return self.name + (f" #{attempt}" if attempt else "") + (f" ({reason})" if reason else "")


class EventRecord:
    """Records events and provides assertions.

    This is the base class of `AppTest` and `AppThread`. Events are selected by their fields
    (`tier="5m"`, `attempt=2`, `message_id=…`). `reason` only has to contain the given text.
    """

    def __init__(self) -> None:
        self.events: list[Happening] = []

    def find_events(self, name: str, **fields: Any) -> tuple[Happening, ...]:
        """Return the recorded events with the given name and fields.

        Raises:
            ValueError: If the event or one of the fields does not exist.
        """
        known = EVENTS.get(name)
        if known is None:
            raise ValueError(
                f"expected the name of an event, got {name!r}{did_you_mean(name, EVENTS)}"
            )
        for field in fields:
            if field not in known.fields:
                meant = did_you_mean(field, known.fields)
                raise ValueError(
                    f"expected a field of {name} ({', '.join(known.fields)}), got {field!r}{meant}"
                )
        return tuple(one for one in tuple(self.events) if one.fits(name, fields))

    def assert_done(self, queue: str, *, times: int | None = None, **fields: Any) -> None:
        """Assert that messages of the queue were handled.

        If `times` is given, the number of messages has to match exactly.
        """
        self._expect("delivery.done", queue, times, fields)

    def assert_retried(
        self, queue: str, *, times: int | None = None, reason: str = "", **fields: Any
    ) -> None:
        """Assert that messages of the queue were sent to a retry queue."""
        self._expect("delivery.retried", queue, times, {"reason": reason, **fields})

    def assert_parked(
        self, queue: str, *, times: int | None = None, reason: str = "", **fields: Any
    ) -> None:
        """Assert that messages of the queue were dead-lettered."""
        self._expect("delivery.parked", queue, times, {"reason": reason, **fields})

    def _plan(self, queue: str) -> object:
        """Return the plan of the queue. Raises LookupError if the queue is not handled."""
        raise NotImplementedError

    def _expect(self, name: str, queue: str, times: int | None, fields: dict[str, Any]) -> None:
        self._plan(queue)
        found = len(self.find_events(name, queue=queue, **fields))
        if found == times or (times is None and found):
            return
        wanted = "at least one" if times is None else times
        told = [one.summary for one in tuple(self.events) if one.fields.get("queue") == queue]
        raise AssertionError(
            f"expected {wanted} {name} of {queue} with {fields or 'any fields'}, got {found}. "
            f"Events: {', '.join(told) or 'none'}"
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of deliveries per outcome."""

    done: int = 0
    retried: int = 0
    parked: int = 0
    snoozed: int = 0
    held: int = 0
    """How many attempts to settle a delivery failed and were postponed."""
    abandoned: int = 0
    """How many deliveries lost their channel before they were settled."""


_COUNTED = {f"delivery.{field}": field for field in Tally.__dataclass_fields__}


def tally_of(events: Iterable[Happening]) -> Tally:
    counts = dict.fromkeys(Tally.__dataclass_fields__, 0)
    for one in events:
        field = _COUNTED.get(one.name)
        if field is not None:
            counts[field] += 1
    return Tally(**counts)
