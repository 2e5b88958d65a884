"""Several processes under one: how they end."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from hopback.broker.supervise import Backoff
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


async def test_child_ended_by_sigterm_during_start_exits_cleanly() -> None:
    """It does not handle SIGTERM yet and holds no message."""
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


async def test_ready_child_killed_by_signal_is_a_failure(tmp_path: Path) -> None:
    """It may have left messages."""
    sign = tmp_path / "ready"

    def command(_number: int, descriptor: int) -> Sequence[str]:
        return [sys.executable, "-c", _READY.format(descriptor=descriptor, sign=str(sign))]

    supervisor = Supervisor(1, command, os.environ)
    running = asyncio.create_task(supervisor.run())
    await until(sign.exists)
    supervisor.stop()
    await asyncio.wait_for(running, 30)
    assert supervisor.code == 1


_LIVES = """
import pathlib, socket, sys, time
lives = pathlib.Path({lives!r})
number = len(lives.read_text()) if lives.exists() else 0
lives.write_text("." * (number + 1))
parent = socket.socket(fileno={descriptor})
if number in {says_ready}:
    parent.send(b'{{"ready": true}}\\n')
if number < 2:
    sys.exit(7)
time.sleep(60)
"""


async def test_child_that_dies_before_it_reports_readiness_again_is_restarted(
    tmp_path: Path,
) -> None:
    """A message may kill it between its first delivery and the report.

    The other children must not end.
    """
    lives = tmp_path / "lives"

    def command(_number: int, descriptor: int) -> Sequence[str]:
        text = _LIVES.format(descriptor=descriptor, lives=str(lives), says_ready=(0, 2))
        return [sys.executable, "-c", text]

    supervisor = Supervisor(1, command, os.environ, backoff=Backoff(first=0.01, most=0.01))
    running = asyncio.create_task(supervisor.run())
    await until(lambda: lives.exists() and len(lives.read_text()) == 3)
    assert supervisor.restarts == 2
    supervisor.stop()
    await asyncio.wait_for(running, 30)


_FORKS = """
import os, pathlib, signal, socket, time
lives = pathlib.Path({lives!r})
number = len(lives.read_text()) if lives.exists() else 0
lives.write_text("." * (number + 1))
parent = socket.socket(fileno={descriptor})
parent.send(b'{{"ready": true}}\\n')
if number == 0:
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(40)
    os._exit(0)
time.sleep(60)
"""


async def test_child_that_dies_is_restarted_while_a_process_that_it_forked_is_alive(
    tmp_path: Path,
) -> None:
    """A process of `multiprocessing` keeps the socket of the child open."""
    lives = tmp_path / "lives"

    def command(_number: int, descriptor: int) -> Sequence[str]:
        return [sys.executable, "-c", _FORKS.format(descriptor=descriptor, lives=str(lives))]

    supervisor = Supervisor(1, command, os.environ, backoff=Backoff(first=0.01, most=0.01))
    running = asyncio.create_task(supervisor.run())
    await until(lambda: lives.exists() and len(lives.read_text()) == 2, seconds=30)
    supervisor.stop()
    await asyncio.wait_for(running, 30)


async def test_child_that_was_never_ready_ends_all_with_its_code(tmp_path: Path) -> None:
    """A restart would not help."""
    lives = tmp_path / "lives"

    def command(_number: int, descriptor: int) -> Sequence[str]:
        text = _LIVES.format(descriptor=descriptor, lives=str(lives), says_ready=())
        return [sys.executable, "-c", text]

    supervisor = Supervisor(1, command, os.environ)
    await asyncio.wait_for(supervisor.run(), 30)
    assert (supervisor.code, len(lives.read_text())) == (7, 1)


_REPORTS = """
import json, pathlib, socket, time
parent = socket.socket(fileno={descriptor})
left = [{{"queue": f"orders of tenant {{number}}", "kept": 1}} for number in range(2000)]
parent.sendall(json.dumps({{"ready": True, "report": {{"left": left}}}}).encode() + b"\\n")
pathlib.Path({sign!r}).touch()
time.sleep(60)
"""


async def test_report_about_thousands_of_queues_is_read(tmp_path: Path) -> None:
    sign = tmp_path / "reported"

    def command(_number: int, descriptor: int) -> Sequence[str]:
        return [sys.executable, "-c", _REPORTS.format(descriptor=descriptor, sign=str(sign))]

    supervisor = Supervisor(1, command, os.environ)
    running = asyncio.create_task(supervisor.run())
    await until(sign.exists)
    supervisor.stop()
    await asyncio.wait_for(running, 30)
    assert [len(report["left"]) for report in supervisor.reports] == [2000]
