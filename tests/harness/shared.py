"""One node for the whole test run, whichever of its processes asks first.

The main process of the run opens a named pipe and keeps it open; the guard of the shared node
waits for its end of file. So the node lives as long as the run, also when pytest-xdist's workers
come and go, and is gone when the run is, also after kill -9.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.management import Management
from tests.harness.rabbitmq import RabbitNode

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SharedNode", "begin_run", "end_run", "shared_node"]

_VARIABLE = "HOPBACK_TEST_RUN"
_held: list[int] = []


@dataclass(frozen=True, slots=True)
class SharedNode:
    """The node of the run: to be used, not to be stopped. Take a virtual host of your own."""

    url: str
    management_url: str

    @property
    def management(self) -> Management:
        """The few HTTP calls that tests need themselves."""
        return Management(self.management_url)

    def vhost_url(self, vhost: str) -> str:
        """The address of a virtual host, which is created if it is missing."""
        self.management.create_vhost(vhost)
        return self.url + vhost


def begin_run() -> None:
    """Called by the run's main process before anything else."""
    folder = Path(tempfile.mkdtemp(prefix="hopback-run-"))
    os.environ[_VARIABLE] = str(folder)
    os.mkfifo(folder / "lifeline")
    _held.append(os.open(folder / "lifeline", os.O_RDWR))


def end_run() -> None:
    """Called by the run's main process after everything else: the shared node ends."""
    folder = Path(os.environ.pop(_VARIABLE))
    os.close(_held.pop())
    shutil.rmtree(folder, ignore_errors=True)


def shared_node() -> SharedNode:
    """The run's node; started by the first who asks."""
    folder = Path(os.environ[_VARIABLE])
    with _locked(folder / "lock"):
        known = folder / "node.json"
        if not known.exists():
            known.write_text(json.dumps(_start(folder / "lifeline")))
        return SharedNode(**json.loads(known.read_text()))


def _start(lifeline: Path) -> dict[str, str]:
    reading = os.open(lifeline, os.O_RDONLY)
    node = RabbitNode(lifeline=reading).start()
    os.close(reading)
    node.hand_over()
    return {"url": node.url, "management_url": node.management_url}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
