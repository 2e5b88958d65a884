"""Python's own logging through the same lines: what libraries and handlers log looks like our events."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopback.observe.logs import EventLog

__all__ = ["LogBridge"]


class LogBridge(logging.Handler):
    """A logging handler that writes records through an event log, under the event `log`."""

    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; one that cannot be formatted is reported by logging itself."""
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
