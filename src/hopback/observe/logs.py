"""Write events as log lines, either as JSON or as text for terminals.

Each line contains the level, name and fields of an event. Control characters are escaped or
replaced, so that values cannot forge lines or control the terminal. Records of the `logging` module
are written in the same format. `codes` maps event names to custom codes.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

from hopback.text import one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hopback.clock import Clock

__all__ = ["LEVELS", "SEVERITY", "EventLog", "JsonLog", "LogBridge", "TextLog"]

LEVELS: Mapping[str, str] = MappingProxyType(
    {
        "delivery.done": "debug",
        "delivery.snoozed": "info",
        "delivery.retried": "warning",
        "delivery.held": "error",
        "delivery.abandoned": "warning",
        "delivery.copy": "warning",
        "delivery.parked": "error",
        "inbox.duplicate": "warning",
        "handler.failed": "warning",
        "handler.overdue": "warning",
        "handler.slow": "warning",
        "delivery.taken_back": "warning",
        "publish.failed": "error",
        "delay.sent": "debug",
        "delay.early": "warning",
        "periodic.sent": "debug",
        "periodic.clock": "warning",
        "consumer.lost": "warning",
        "consumer.paused": "warning",
        "quarantine.begun": "warning",
        "batch.handled": "debug",
        "topology.warning": "warning",
        "topology.restored": "warning",
        "topology.unusable": "error",
    }
)
"""The log level of each event. The default is `info`."""

SEVERITY: Mapping[str, int] = MappingProxyType(
    {"debug": 10, "info": 20, "warning": 30, "error": 40}
)
"""The numeric levels of the `logging` module."""

_OUTCOMES = {
    "delivery.done": "done",
    "delivery.retried": "retry",
    "delivery.parked": "park",
    "delivery.snoozed": "snooze",
    "delivery.held": "held",
    "delivery.abandoned": "abandoned",
    "delivery.copy": "copy",
}
_LONGEST = 2000  # maximum number of characters of a field
_LONGEST_BLOCK = 8000  # maximum number of characters of a traceback
_BLOCKS = ("traceback", "stack")
"""Multi-line fields. The text format prints them on separate lines."""
_FIRST = ("process", "outcome", "queue", "attempt", "maxAttempts", "reason", "error")
"""Fields that the text format prints first."""
_COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m"}


class EventLog:
    """Base class of subscribers that write events as log lines.

    Args:
        level: Minimum level of the events to write.
        silent: Names of events that are not written.
        process: Number of the worker process.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        stream: IO[str] | None = None,
        level: str = "info",
        codes: Mapping[str, str] | None = None,
        silent: Collection[str] = (),
        process: int | None = None,
    ) -> None:
        if level not in SEVERITY:
            raise ValueError(f"expected a level of {', '.join(SEVERITY)}, got {level!r}")
        self._clock = clock
        self._stream = stream
        self._least = SEVERITY[level]
        self._codes = codes or {}
        self._silent = silent
        self._always = {} if process is None else {"process": process}

    def wants(self, name: str) -> bool:
        """Return True if the event is logged."""
        return name not in self._silent and SEVERITY[LEVELS.get(name, "info")] >= self._least

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        """Log an event."""
        if self.wants(name):
            # Add common fields and remove the ones that are None.
            code = self._codes.get(name)
            if fields.get("exhausted"):
                # `delivery.parked.exhausted` is more specific than the event name.
                code = self._codes.get(f"{name}.exhausted", code)
            known = {"outcome": _OUTCOMES.get(name), "code": code, **fields}
            details = {_camel(key): value for key, value in known.items() if value is not None}
            self.write(LEVELS.get(name, "info"), name, details)

    def write(self, level: str, event: str, details: Mapping[str, Any]) -> None:
        """Write a line for an event or a log record."""
        moment = datetime.fromtimestamp(self._clock.now(), UTC)
        shown = {key: _short(key, value) for key, value in (self._always | dict(details)).items()}
        line = self.line(moment, level, event, shown)
        (self._stream or sys.stderr).write(line + "\n")

    def line(self, moment: datetime, level: str, event: str, details: Mapping[str, Any]) -> str:
        """Format a line without the trailing newline."""
        raise NotImplementedError


class JsonLog(EventLog):
    """Writes one JSON object per line, with camelCase names and only ASCII characters."""

    def line(self, moment: datetime, level: str, event: str, details: Mapping[str, Any]) -> str:
        """Format the line with time, level and event first."""
        stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        head = {"time": stamp, "level": level, "event": event}
        return json.dumps({**head, **details, **head}, default=str)


class TextLog(EventLog):
    """Writes short lines with the time, level, event and `name=value` pairs.

    Tracebacks are printed below the line, indented by a vertical bar.
    """

    def __init__(self, *args: Any, colour: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._colour = colour

    def line(self, moment: datetime, level: str, event: str, details: Mapping[str, Any]) -> str:
        """Format the line, replacing control characters."""
        first = [key for key in _FIRST if details.get(key, "") != ""]
        rest = [key for key in details if key not in _FIRST and key not in _BLOCKS]
        told = " ".join(f"{key}={_quote(details[key])}" for key in (*first, *rest))
        text = f"{moment:%H:%M:%S} {level:7} {one_line(event)} {told}".rstrip()
        colour = _COLOURS.get(level) if self._colour else None
        head = text if colour is None else f"{colour}{text}\x1b[0m"
        blocks = [str(details[key]).rstrip("\n").split("\n") for key in _BLOCKS if key in details]
        return "\n".join([head, *(f"  | {one_line(line)}" for block in blocks for line in block)])


def _quote(value: Any) -> str:
    """Quote a value if it contains spaces or special characters."""
    text = str(value)
    if text and not any(sign in text for sign in ' ="\n'):
        return one_line(text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{one_line(escaped)}"'


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _short(name: str, value: Any) -> Any:
    """Truncate long values. Keep the end of a traceback and the beginning of other values."""
    if isinstance(value, str) and name in _BLOCKS:
        return value if len(value) <= _LONGEST_BLOCK else "…" + value[-_LONGEST_BLOCK:]
    if isinstance(value, str) and len(value) > _LONGEST:
        return value[:_LONGEST] + "…"
    return round(value, 6) if isinstance(value, float) else value


class LogBridge(logging.Handler):
    """A logging handler that writes records to an event log."""

    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record."""
        try:
            details: dict[str, Any] = {"logger": record.name, "message": record.getMessage()}
            if record.exc_info and record.exc_info[0] is not None:
                details["stack"] = "".join(traceback.format_exception(*record.exc_info))
            elif (stack := getattr(record, "hopback_stack", None)) is not None:
                details["stack"] = stack
            self._log.write(_level(record.levelno), "log", details)
        except Exception:
            self.handleError(record)


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"
