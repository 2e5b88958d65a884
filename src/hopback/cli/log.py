"""The log of commands that run until they are stopped."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from hopback.clock import SystemClock
from hopback.observe.logs import SEVERITY, EventLog, JsonLog, LogBridge, TextLog


def open_log(level: str, form: str, **more: Any) -> EventLog:
    """Log JSON lines to stderr, or text if it is a terminal. Messages of Python's logging are
    included.
    """
    on_terminal = sys.stderr.isatty()
    as_text = form == "text" or (form == "auto" and on_terminal)
    colour = on_terminal and not os.environ.get("NO_COLOR")
    clock = SystemClock()
    log: EventLog = (
        TextLog(clock, colour=colour, level=level, **more)
        if as_text
        else JsonLog(clock, level=level, **more)
    )
    # This has no effect if the application has already configured logging.
    logging.basicConfig(level=SEVERITY[level], handlers=[LogBridge(log)])
    return log
