"""What `hopback run` was told, and how that is passed on to processes of its own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EMBEDDED", "HttpAddress", "RunSettings"]

EMBEDDED = "embedded"
"""The broker URL that stands for the broker inside the process."""


class HttpAddress(click.ParamType[tuple[str, int]]):
    """`PORT` (on loopback) or `HOST:PORT`."""

    name = "[host:]port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Host and port; 0 takes a free port."""
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not port.isdecimal() or int(port) > 65_535:
            self.fail(f"expected PORT or HOST:PORT, got {value!r}", param, ctx)
        return host.strip("[]") or "127.0.0.1", int(port)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that the options say."""

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
    """Which of several processes this is."""
    parent: int | None = None
    """The descriptor of the line to the parent, in a child."""

    @property
    def embedded(self) -> bool:
        """Whether the broker lives in the process."""
        return self.broker == EMBEDDED

    def command(self, number: int, descriptor: int) -> list[str]:
        """The command of a child; what may hold a password goes by the environment."""
        return [
            *(sys.executable, "-m", "hopback", "run", self.target),
            *("--child", str(number), "--parent", str(descriptor)),
            *self._options(number),
        ]

    def environment(self) -> dict[str, str]:
        """The environment of a child."""
        own = {"HOPBACK_BROKER": self.broker}
        if self.management is not None:
            own["HOPBACK_MANAGEMENT"] = self.management
        return {**os.environ, **own}

    def _options(self, number: int) -> Iterator[str]:
        for queue in self.queues:
            yield f"--queue={queue}"
        for rule in self.accept:
            yield f"--accept={rule}"
        if self.concurrency is not None:
            yield f"--concurrency={self.concurrency}"
        if self.http is not None:
            host, port = self.http
            # Each process has a port of its own, one after the other.
            yield f"--http={host}:{port + number if port else 0}"
        if self.otel:
            yield "--otel"
        yield f"--ownership={self.ownership}"
        yield f"--grace={self.grace}"
        yield f"--log-level={self.log_level}"
        yield f"--log-format={self.log_format}"
