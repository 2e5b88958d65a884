"""Commands as processes in separate folders."""

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

__all__ = ["Process", "get", "start_process"]

T = TypeVar("T")
_TIMEOUT_S = 60.0


class Process:
    """A process and its output."""

    def __init__(self, running: subprocess.Popen[bytes], output: Path) -> None:
        self._process = running
        self._output = output

    @property
    def text(self) -> str:
        """The output so far."""
        return self._output.read_text()

    def wait_for_output(self, pattern: str) -> str:
        """Wait until the output matches the pattern and return its first group."""
        return self.wait_until(lambda: re.search(pattern, self.text)).group(1)

    def wait_until(self, condition: Callable[[], T | None]) -> T:
        """Wait until the condition returns a true value and return it. The error contains the output."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not (found := condition()):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise AssertionError(self.text)
            time.sleep(0.05)
        return found

    def end(self, how: signal.Signals = signal.SIGINT) -> int:
        """Send a signal and return the exit status."""
        self._process.send_signal(how)
        return self._process.wait(_TIMEOUT_S)


@contextmanager
def start_process(folder: Path, *module: str, **environment: str) -> Iterator[Process]:
    """Run `python -m …` with the folder as working and temporary directory. Kill it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output"
    settings = {"PYTHONUNBUFFERED": "1", "TMPDIR": str(folder), **environment}
    with output.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=folder,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Process(process, output)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def get(url: str) -> httpx.Response | None:
    """Return the response, or None if there is no connection."""
    try:
        return httpx.get(url, trust_env=False, timeout=10)
    except httpx.TransportError:
        return None
