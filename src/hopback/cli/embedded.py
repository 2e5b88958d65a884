"""The broker of `hopback run --broker embedded`, and a way for other commands to find it.

`run` writes the address of the broker and the name of its application to a file, and keeps the file
locked. There is one file for each user and directory.

When the process ends, the kernel releases the lock. If a file is not locked, its address is
outdated, and the port may be used by another program.
"""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopback.cli.broker_options import EMBEDDED
from hopback.cli.exits import CommandFailed, Exit
from hopback.private_files import runtime_folder
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import TextIO


@dataclass(frozen=True, slots=True)
class EmbeddedRun:
    """A process of `hopback run --broker embedded`, with the address of its broker and its
    MODULE:APP.
    """

    url: str
    target: str


@asynccontextmanager
async def embedded_broker(target: str, queue: str = "") -> AsyncIterator[str]:
    """Run a broker in this process and yield its address. Prints how to publish a message to
    `queue`.

    If there is no queue, a worker process prints this, because only the worker has loaded the
    application.
    """
    from hopback.broker.server import BrokerServer, ServerSettings

    server = BrokerServer(ServerSettings(http_port=None))
    try:
        await server.start()
    except OSError:  # the port is in use, perhaps by RabbitMQ
        server = BrokerServer(ServerSettings(port=0, http_port=None))
        await server.start()
    url = server.url.replace("amqp://", "amqp://guest:guest@") + "/"
    announced = _announce(EmbeddedRun(url, target))
    click.echo(f"The broker of this process, in memory: {url}")
    if queue:
        _print_publish_command(queue, "" if announced else f" --broker {url}")
    sys.stdout.flush()
    try:
        yield url
    finally:
        if announced:
            announced.close()
        await server.stop()


def _print_publish_command(queue: str, option: str = "") -> None:
    command = f"hopback publish {queue} '{{}}'{option}"
    click.echo(safe(f"Publish from another terminal in this directory: {command}"))


def print_publish_command(queue: str, url: str) -> None:
    """Print how to publish to a queue, if this is the address of the embedded broker in this
    directory.
    """
    with suppress(CommandFailed):
        if find_embedded().url == url:
            _print_publish_command(queue)
            sys.stdout.flush()


def find_embedded() -> EmbeddedRun:
    """Find the process of `hopback run --broker embedded` in this directory."""
    try:
        with _address_file().open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # the process is still running
                url, _, target = file.read().partition("\n")
                return EmbeddedRun(url, target)
    except OSError:  # the file does not exist, or other users can access its folder
        pass
    raise CommandFailed(
        f"`hopback run --broker {EMBEDDED}` is not running in {Path.cwd()} for this user",
        do="Start it in this directory, or name a broker with --broker URL or HOPBACK_BROKER.",
        code=Exit.UNREACHABLE,
    )


def _announce(run: EmbeddedRun) -> TextIO | None:
    """Write the address and the name of the application to the file of this directory and return
    the locked file.

    Returns None if another process has already written the file, or if the folder cannot be used.
    """
    try:
        file = os.fdopen(os.open(_address_file(), os.O_RDWR | os.O_CREAT, 0o600), "w")
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    file.truncate(0)
    file.write(f"{run.url}\n{run.target}")
    file.flush()
    return file


def _address_file() -> Path:
    directory = sha256(os.fsencode(Path.cwd())).hexdigest()
    return runtime_folder() / f"broker-{directory[:32]}"
