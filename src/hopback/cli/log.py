"""The log of a command that runs until it is stopped."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from hopback.clock import SystemClock
from hopback.observe.logs import SEVERITY, JsonLog, LogBridge, TextLog

if TYPE_CHECKING:
    from hopback.observe.logs import EventLog


def open_log(level: str, form: str, **more: Any) -> EventLog:
    """JSON lines on stderr, short ones on a terminal; Python's own logging joins them."""
    on_terminal = sys.stderr.isatty()
    as_text = form == "text" or (form == "auto" and on_terminal)
    colour = on_terminal and not os.environ.get("NO_COLOR")
    clock = SystemClock()
    log: EventLog = (
        TextLog(clock, colour=colour, level=level, **more)
        if as_text
        else JsonLog(clock, level=level, **more)
    )
    # An application that has configured logging for itself is left alone.
    logging.basicConfig(level=SEVERITY[level], handlers=[LogBridge(log)])
    return log
