"""The events of an application during a test, assertions about them, and counts of outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopback.observe.events import EVENTS
from hopback.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Happening:
    """One event: its name in the table of events, its fields, and when (seconds since 1970)."""

    name: str
    fields: Mapping[str, Any]
    at: float

    def fits(self, name: str, wanted: Mapping[str, Any]) -> bool:
        """Whether it has this name and these fields. A wanted `reason` may be a part of the text."""
        return self.name == name and all(
            value in str(self.fields.get(field))
            if field == "reason"
            else self.fields.get(field) == value
            for field, value in wanted.items()
        )

    @property
    def summary(self) -> str:
        """The event in short: name, attempt and reason."""
        reason, attempt = self.fields.get("reason"), self.fields.get("attempt")
        return self.name + (f" #{attempt}" if attempt else "") + (f" ({reason})" if reason else "")


class EventRecord:
    """The events of an application during a test, with assertions about them.

    The test kit and the pytest plugin share these methods. Fields of an event are selected by name
    (`tier="5m"`, `attempt=2`, `message_id=…`). A part of the text is enough for `reason`.
    """

    def __init__(self) -> None:
        self.events: list[Happening] = []

    def find_events(self, name: str, **fields: Any) -> tuple[Happening, ...]:
        """The events of that name with those fields, so far.

        ValueError for an event or a field that is not in the table of events: it would never be found.
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
        """Fail unless messages of the queue were handled, exactly `times` messages if it is given."""
        self._expect("delivery.done", queue, times, fields)

    def assert_retried(
        self, queue: str, *, times: int | None = None, reason: str = "", **fields: Any
    ) -> None:
        """Fail unless messages of the queue went to a retry queue, for such a reason."""
        self._expect("delivery.retried", queue, times, {"reason": reason, **fields})

    def assert_parked(
        self, queue: str, *, times: int | None = None, reason: str = "", **fields: Any
    ) -> None:
        """Fail unless messages of the queue were parked, for such a reason."""
        self._expect("delivery.parked", queue, times, {"reason": reason, **fields})

    def _plan(self, queue: str) -> object:
        """LookupError for a queue that the application does not handle."""
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
    """How often deliveries ended in which way."""

    done: int = 0
    retried: int = 0
    parked: int = 0
    snoozed: int = 0
    held: int = 0
    """How often a step before settlement failed and was put off."""
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
