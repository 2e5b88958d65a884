"""`hopback run` as a process: output, probes and exit."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.acceptance.conftest import Installed

__all__ = ["Running", "running"]

_PATIENCE_S = 40.0


class Running:
    """A process of `hopback run` that logs JSON."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self._folder = folder

    @property
    def out(self) -> str:
        """Its stdout."""
        return (self._folder / "out").read_text()

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of its log so far. Only a start failure is plain text."""
        lines = self.err.splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    @property
    def err(self) -> str:
        """Its stderr."""
        return (self._folder / "err").read_text()

    def said(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """The lines of that event with those fields."""
        return [
            line
            for line in self.log
            if line["event"] == event and all(line.get(key) == fields[key] for key in fields)
        ]

    @property
    def urls(self) -> list[str]:
        """Where it listens, process by process in the order they came up."""
        lines = self.said("log", logger="hopback.run")
        told = [line["message"] for line in lines if "listening on" in line["message"]]
        return [message.rpartition(" ")[2] for message in told]

    def get(self, path: str) -> tuple[int, str]:
        """Ask the last process that came up."""
        try:
            with urllib.request.urlopen(self.urls[-1] + path, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def until(self, condition: Callable[[], object]) -> None:
        """Return when the condition holds. Fail with the output if it does not in time."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(self.err + self.out)
            time.sleep(0.02)

    def end(self, signal: int, *, times: int = 1) -> int:
        """Send a signal and wait for the exit code."""
        for _ in range(times):
            self.process.send_signal(signal)
            time.sleep(0.3)
        return self.process.wait(_PATIENCE_S)


@contextmanager
def running(
    installed: Installed, folder: Path, *arguments: str, **environment: str
) -> Iterator[Running]:
    """Run `hopback run` with these arguments in a folder and end it afterwards."""
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [str(installed.command), "run", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
    try:
        yield Running(process, folder)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
