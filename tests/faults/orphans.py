"""Ends the programs of a campaign when the campaign ends, even if it is killed with SIGKILL."""

from __future__ import annotations

import os
import threading
import time

__all__ = ["end_with_parent"]


def end_with_parent() -> None:
    """Kill this process as soon as its parent process has ended."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
