"""A RabbitMQ node and a PostgreSQL server for the whole test run.

The first process that needs a server starts it. The main process keeps a named pipe open, and the
guard processes of the servers wait for its end of file. The servers therefore run until the end of
the run, even if workers of pytest-xdist restart, and are stopped even after SIGKILL.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.harness.management import Management
from tests.harness.postgres import PostgresNode
from tests.harness.rabbitmq import RabbitNode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "SharedNode",
    "SharedPostgres",
    "begin_run",
    "end_run",
    "made_once",
    "shared_node",
    "shared_postgres",
]

_VARIABLE = "HOPBACK_TEST_RUN"
_held: list[int] = []


@dataclass(frozen=True, slots=True)
class SharedNode:
    """The node of the test run. Tests must use their own virtual host and must not stop the node."""

    url: str
    management_url: str

    @property
    def management(self) -> Management:
        """A client for the HTTP API."""
        return Management(self.management_url)

    def vhost_url(self, vhost: str) -> str:
        """Return the URL of a virtual host. It is created if it does not exist."""
        self.management.create_vhost(vhost)
        return self.url + vhost


@dataclass(frozen=True, slots=True)
class SharedPostgres:
    """The PostgreSQL server of the test run. Tests must use their own database and must not stop
    the server.
    """

    server: str

    def create_database(self) -> str:
        """Create a database and return its URL for Hopback."""
        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(f"{self.server}/postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload, unused-ignore]
        return f"{self.server}/{name}"


def begin_run() -> None:
    """Open the pipe. The main process calls this before anything else."""
    folder = Path(tempfile.mkdtemp(prefix="hopback-run-"))
    os.environ[_VARIABLE] = str(folder)
    os.mkfifo(folder / "lifeline")
    _held.append(os.open(folder / "lifeline", os.O_RDWR))


def end_run() -> None:
    """Close the pipe, which stops the shared servers. The main process calls this at the end."""
    folder = Path(os.environ.pop(_VARIABLE))
    os.close(_held.pop())
    shutil.rmtree(folder, ignore_errors=True)


def shared_node() -> SharedNode:
    """Return the node of the test run. The first caller starts it."""
    return SharedNode(**_known("rabbitmq", _start_rabbitmq))


def shared_postgres() -> SharedPostgres:
    """Return the PostgreSQL server of the test run. The first caller starts it."""
    return SharedPostgres(**_known("postgresql", _start_postgres))


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of the test run. The first caller fills it, and it is deleted at the end of
    the run.
    """
    run = Path(os.environ[_VARIABLE])
    folder, done = run / name, run / f"{name}.done"
    with (run / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # a process may have failed to fill it
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def _known(name: str, start: Callable[[int], dict[str, str]]) -> dict[str, str]:
    """Return the address of a server, which was written by the process that has started it."""

    def write_down(folder: Path) -> None:
        lifeline = os.open(folder.parent / "lifeline", os.O_RDONLY)
        (folder / "where.json").write_text(json.dumps(start(lifeline)))
        os.close(lifeline)

    known: dict[str, str] = json.loads((made_once(name, write_down) / "where.json").read_text())
    return known


def _start_rabbitmq(lifeline: int) -> dict[str, str]:
    node = RabbitNode(lifeline=lifeline).start()
    node.hand_over()
    return {"url": node.url, "management_url": node.management_url}


def _start_postgres(lifeline: int) -> dict[str, str]:
    node = PostgresNode().start()
    node.hand_over(lifeline)
    return {"server": node.url("").removesuffix("/")}
