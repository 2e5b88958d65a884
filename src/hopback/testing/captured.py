"""What an application said about itself during a test, and the count of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Happening", "Tally", "tally_of"]


@dataclass(frozen=True, slots=True)
class Happening:
    """One event: its name in the table of events, its fields, and when (seconds since 1970)."""

    name: str
    fields: Mapping[str, Any]
    at: float

    def fits(self, name: str, wanted: Mapping[str, Any]) -> bool:
        """Whether it is of that name and has those fields; a wanted `reason` need only be in it."""
        return self.name == name and all(
            value in str(self.fields.get(field))
            if field == "reason"
            else self.fields.get(field) == value
            for field, value in wanted.items()
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


def tally_of(happenings: Iterable[Happening]) -> Tally:
    """Count what happened to deliveries."""
    counts = dict.fromkeys(Tally.__dataclass_fields__, 0)
    for one in happenings:
        field = _COUNTED.get(one.name)
        if field is not None:
            counts[field] += 1
    return Tally(**counts)
