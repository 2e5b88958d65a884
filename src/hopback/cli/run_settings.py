"""The settings of `hopback run`, and the command line with which they are passed to worker
processes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from hopback.cli.broker_options import EMBEDDED


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The values of the options of `hopback run`."""

    target: str
    broker: str
    management: str | None
    queues: tuple[str, ...]
    concurrency: int | None
    processes: int
    reload: bool
    ownership: str
    accept: tuple[str, ...]
    grace: float
    http: tuple[str, int] | None
    log_level: str
    log_format: str
    otel: bool
    number: int = 0
    """The index of this worker process."""
    parent: int | None = None
    """The file descriptor of the connection to the parent process. None if this is not a worker."""

    @property
    def embedded(self) -> bool:
        """Whether the broker runs in this process."""
        return self.broker == EMBEDDED

    def command(self, number: int, descriptor: int) -> list[str]:
        """Return the command line of a worker process. URLs may contain passwords, so they are
        passed with `environment`.
        """
        words = [sys.executable, "-m", "hopback", "run", self.target]
        words += ["--child", str(number), "--parent", str(descriptor)]
        words += [f"--queue={queue}" for queue in self.queues]
        words += [f"--accept={rule}" for rule in self.accept]
        if self.concurrency is not None:
            words.append(f"--concurrency={self.concurrency}")
        if self.http is not None:
            host, port = self.http
            # Each process uses its own port. They are consecutive.
            words.append(f"--http={host}:{port + number if port else 0}")
        if self.otel:
            words.append("--otel")
        return [
            *words,
            f"--ownership={self.ownership}",
            f"--grace={self.grace}",
            f"--log-level={self.log_level}",
            f"--log-format={self.log_format}",
        ]

    def environment(self) -> dict[str, str]:
        own = {"HOPBACK_BROKER": self.broker, "HOPBACK_MANAGEMENT": self.management or ""}
        return {**os.environ, **own}
