"""Programs of a campaign end with it, even if it is killed with SIGKILL."""

from __future__ import annotations

import os
import threading
import time

__all__ = ["end_with_parent"]


def end_with_parent() -> None:
    """End this process, as `kill -9` would, as soon as the one that started it is gone."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
