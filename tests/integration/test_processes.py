"""Several processes under one: how they end."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from hopback.runtime.processes import Supervisor
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_READY = """
import pathlib, socket, time
parent = socket.socket(fileno={descriptor})
parent.send(b'{{"ready": true}}\\n')
pathlib.Path({sign!r}).touch()
time.sleep(60)
"""


async def test_a_child_that_was_still_starting_ends_well() -> None:
    """It has no ear for SIGTERM yet, so the signal ends it; it had nothing in hand."""
    asked = asyncio.Event()

    def command(_number: int, _descriptor: int) -> Sequence[str]:
        asked.set()
        return [sys.executable, "-c", "import time; time.sleep(60)"]

    supervisor = Supervisor(2, command, os.environ)
    running = asyncio.create_task(supervisor.run())
    await asked.wait()
    supervisor.stop()
    await asyncio.wait_for(running, 30)
    assert supervisor.code == 0


async def test_a_child_that_was_ready_and_dies_of_the_signal_does_not(tmp_path: Path) -> None:
    """Whoever took messages has to end in order; nobody knows what it left."""
    sign = tmp_path / "ready"

    def command(_number: int, descriptor: int) -> Sequence[str]:
        return [sys.executable, "-c", _READY.format(descriptor=descriptor, sign=str(sign))]

    supervisor = Supervisor(1, command, os.environ)
    running = asyncio.create_task(supervisor.run())
    await until(sign.exists)
    supervisor.stop()
    await asyncio.wait_for(running, 30)
    assert supervisor.code == 1
