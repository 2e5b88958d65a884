"""Commands as processes, in a folder of their own; all are gone afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Process", "get", "started"]

T = TypeVar("T")
_PATIENCE_S = 60.0


class Process:
    """A process that was started, and what it has written so far."""

    def __init__(self, running: subprocess.Popen[bytes], output: Path) -> None:
        self._running = running
        self._output = output

    @property
    def text(self) -> str:
        """What it wrote."""
        return self._output.read_text()

    def said(self, pattern: str) -> str:
        """The first group of a pattern in what it writes, as soon as it is there."""
        return self.until(lambda: re.search(pattern, self.text)).group(1)

    def until(self, condition: Callable[[], T | None]) -> T:
        """What the condition says when it says something; fails with what was written."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (found := condition()):
            if time.monotonic() > deadline or self._running.poll() is not None:
                raise AssertionError(self.text)
            time.sleep(0.05)
        return found

    def end(self, how: signal.Signals = signal.SIGINT) -> int:
        """Send a signal and wait for the exit code."""
        self._running.send_signal(how)
        return self._running.wait(_PATIENCE_S)


@contextmanager
def started(folder: Path, *module: str, **environment: str) -> Iterator[Process]:
    """Run `python -m …` in the folder; its temporary files are made there, too."""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output"
    settings = {"PYTHONUNBUFFERED": "1", "TMPDIR": str(folder), **environment}
    with output.open("wb") as written:
        running = subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=folder,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Process(running, output)
    finally:
        if running.poll() is None:
            running.kill()
        running.wait()


def get(url: str) -> httpx.Response | None:
    """What is answered at an address; None if nobody listens."""
    try:
        return httpx.get(url, trust_env=False, timeout=10)
    except httpx.TransportError:
        return None
