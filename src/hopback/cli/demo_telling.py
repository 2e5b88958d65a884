"""What the demo says: where everything is, and in a line each what happens."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopback.observe.logs import EventLog, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from hopback.systems.stage import Stage, System

__all__ = ["Guide", "ShortLog"]


class ShortLog(EventLog):
    """A line for people: when, which queue, what happened to a message at which run, and why."""

    def line(self, moment: datetime, level: str, event: str, details: Mapping[str, Any]) -> str:
        """The line, without its end."""
        if not event.startswith("delivery."):
            rest = " ".join(f"{key}={plain(str(value))}" for key, value in details.items())
            return f"{moment:%H:%M:%S} {event} {rest}"
        runs = f"run {details['attempt']} of {details['maxAttempts']}"
        happened = f"{event.removeprefix('delivery.'):<8} {runs:<13}"
        where = f" -> {details['tier']}" if "tier" in details else ""
        code = f" [{details['code']}]" if "code" in details else ""
        reason = f" {plain(str(details['reason']))}" if "reason" in details else ""
        return f"{moment:%H:%M:%S} {details['queue']:<28} {happened}{where}{reason}{code}"


@dataclass(frozen=True, slots=True)
class Guide:
    """Where everything is: what the command prints, and `/demo` shows."""

    url: str
    amqp: str
    management: str | None
    systems: tuple[tuple[System, Stage], ...]
    warnings: int

    def lines(self) -> Iterator[str]:
        """Line by line."""
        yield from self._places()
        for system, stage in self.systems:
            yield from ("", f"{system.name}: {system.title}")
            for one in system.tries:
                yield f"  # {one.shows}"
                yield f"  {one.command.replace('{url}', stage.url)}"
        if self.warnings:
            yield ""
            yield (
                f"The documented forms have {self.warnings} known hazards; `{_command()} topology "
                "check NAME` explains them. The hardened forms (--hardened) have none."
            )

    def _places(self) -> Iterator[str]:
        yield f"Dead letters, topology, checks   {self.url}/"
        yield f"This guide                       {self.url}/demo"
        yield f"Health and metrics               {self.url}/readyz {self.url}/metrics"
        yield f"Broker (AMQP)                    {self.amqp}"
        yield ""
        yield "In another terminal:"
        yield f"  export HOPBACK_BROKER={self.amqp}"
        if self.management:
            yield f"  export HOPBACK_MANAGEMENT={self.management}"
        yield f"  {_command()} dlq ls"


def _command() -> str:
    """What to type for this very command."""
    return "hopback" if shutil.which("hopback") or "/" not in sys.argv[0] else sys.argv[0]
