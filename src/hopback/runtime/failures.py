"""Report failed runs.

Tracebacks are logged, and exceptions are passed to functions registered with `app.on_error`. To
keep the log small, failures of the same kind are only logged with a traceback on the 1st, 10th,
100th, … occurrence.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from hopback.policy.outcome import FAILURES
from hopback.runtime.payload import Undecodable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from hopback.headers import Failure
    from hopback.observe.events import Bus
    from hopback.runtime.context import Context

_LOG = logging.getLogger("hopback.runtime")

OnError: TypeAlias = "Callable[[BaseException, Context], object]"
"""A function that is called with the exception and context of a failed run. It must not block."""

_MOST_KINDS = 1000
"""Maximum number of kinds of failures to count. The counts are reset when it is reached, to limit
memory usage.
"""
_HOPBACK = str(Path(__file__).resolve().parents[1]) + os.sep


class FailedRuns:
    """Counts and reports failed runs."""

    def __init__(self, bus: Bus, on_error: Sequence[OnError] = ()) -> None:
        self._bus = bus
        self._on_error = on_error
        self._counts: Counter[tuple[str, str]] = Counter()

    def tell(self, error: BaseException, failure: Failure | None, context: Context) -> None:
        """Report a failed run. The message is handled the same way if reporting fails."""
        for report in self._on_error:
            try:
                report(error, context)
            except FAILURES:
                _LOG.exception("%r of app.on_error raised", report)
        if isinstance(error, Undecodable) or not self._bus.has_listener("handler.failed"):
            return  # the reason already describes the invalid payload
        kind = context.plan.queue, failure.fingerprint if failure else type(error).__name__
        if kind not in self._counts and len(self._counts) >= _MOST_KINDS:
            self._counts.clear()
        self._counts[kind] += 1
        runs = self._counts[kind]
        if runs == 10 ** (len(str(runs)) - 1):
            properties = context.delivery.properties
            self._bus.emit(
                "handler.failed",
                {
                    "queue": context.plan.queue,
                    "routing_key": context.routing_key,
                    "message_id": properties.message_id,
                    "message_type": properties.type,
                    "correlation_id": properties.correlation_id,
                    "attempt": context.attempt,
                    "max_attempts": context.plan.attempts,
                    "error": failure.type if failure else type(error).__name__,
                    "fingerprint": kind[1],
                    "runs": runs,
                    "traceback": own_traceback(error),
                },
            )


def own_traceback(error: BaseException) -> str:
    """Format a traceback and omit the frames of Hopback."""
    found: TracebackType | None = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_HOPBACK):
        found = found.tb_next
    try:
        # If there are no other frames, show all of them.
        lines = traceback.format_exception(type(error), error, found or error.__traceback__)
    except Exception:
        return f"{type(error).__name__}: (its traceback could not be read)"
    return "".join(lines).rstrip("\n")
