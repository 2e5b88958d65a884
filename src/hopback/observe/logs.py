"""Events as JSON log lines: one object a line, names in camelCase, nothing that a message could break.

A line carries the fields of its event, a level, and the name of the event; `codes` gives an event the
name that a documented system uses for it. Values are JSON-encoded, so no message can forge a line.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.clock import Clock

__all__ = ["LEVELS", "JsonLog"]

LEVELS: Mapping[str, str] = MappingProxyType(
    {
        "delivery.done": "debug",
        "delivery.snoozed": "info",
        "delivery.retried": "warning",
        "delivery.held": "error",
        "delivery.abandoned": "warning",
        "delivery.parked": "error",
        "handler.overdue": "warning",
        "publish.failed": "error",
        "consumer.lost": "warning",
        "consumer.paused": "warning",
        "topology.warning": "warning",
    }
)
"""The level of each event; the others are `info`."""

_OUTCOMES = {
    "delivery.done": "done",
    "delivery.retried": "retry",
    "delivery.parked": "park",
    "delivery.snoozed": "snooze",
    "delivery.held": "held",
    "delivery.abandoned": "abandoned",
}
_SEVERITY = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_LONGEST = 2000


class JsonLog:
    """A subscriber that writes each event of at least `level` as one line of JSON."""

    def __init__(
        self,
        clock: Clock,
        *,
        stream: IO[str] | None = None,
        level: str = "info",
        codes: Mapping[str, str] | None = None,
    ) -> None:
        if level not in _SEVERITY:
            raise ValueError(f"expected a level of {', '.join(_SEVERITY)}, got {level!r}")
        self._clock = clock
        self._stream = stream
        self._least = _SEVERITY[level]
        self._codes = codes or {}

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        """Write the event."""
        level = LEVELS.get(name, "info")
        if _SEVERITY[level] < self._least:
            return
        line = json.dumps(self._entry(name, level, fields), default=str)
        stream = self._stream or sys.stderr
        stream.write(line + "\n")

    def _entry(self, name: str, level: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        moment = datetime.fromtimestamp(self._clock.now(), UTC)
        entry = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": level,
            "event": name,
        }
        if name in _OUTCOMES:
            entry["outcome"] = _OUTCOMES[name]
        code = self._code(name, fields)
        if code is not None:
            entry["code"] = code
        entry |= {_camel(key): _short(value) for key, value in fields.items() if value is not None}
        return entry

    def _code(self, name: str, fields: Mapping[str, Any]) -> str | None:
        """A documented system's own name; `delivery.parked.exhausted` is more precise than the event."""
        if fields.get("exhausted"):
            return self._codes.get(f"{name}.exhausted", self._codes.get(name))
        return self._codes.get(name)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _short(value: Any) -> Any:
    """Long texts are cut: a reason may quote what a service answered."""
    if isinstance(value, str) and len(value) > _LONGEST:
        return value[:_LONGEST] + "…"
    return round(value, 6) if isinstance(value, float) else value
