"""A process that forwards due messages, sends periodic messages and replies to requests: `python -m
tests.faults.later_process`.

Its handlers record each message in one line before they ack it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from hopback import App, Context, RabbitMQ, Service
from tests.faults.orphans import end_with_parent

__all__ = ["PERIOD_S", "later_app", "main"]

PERIOD_S = 2
"""The period of the periodic message in seconds. It is due several times during each fault."""


def later_app(note: int) -> App:
    """Create the application. Its handlers write to the file descriptor `note`."""
    app = App("later")
    app.delays("1h")

    @app.handler("later.work", retry=["1s"])
    async def work(payload: dict[str, Any]) -> None:
        os.write(note, f"work {payload['id']} {time.time():.3f}\n".encode())

    @app.every(PERIOD_S, name="later.tick", missed="each", retry=["1s"])
    async def tick(context: Context) -> None:
        os.write(note, f"tick {context.message_id} {time.time():.3f}\n".encode())

    @app.handler("later.ask", retry=None, replies=True)
    async def answer(number: int) -> int:
        return number * number

    return app


async def _run(url: str, path: Path) -> None:
    note = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    service = Service(later_app(note), RabbitMQ(url, confirm_timeout=15))
    await service.run()


def main() -> None:
    end_with_parent()
    asyncio.run(_run(sys.argv[1], Path(sys.argv[2])))


if __name__ == "__main__":
    main()
