"""A process that consumes messages: `python -m tests.faults.consumer`. It runs the ledger
application.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hopback import RabbitMQ, Service, ServiceOptions
from hopback.broker.supervise import Backoff
from hopback.observe.events import Bus
from hopback.runtime import Environment
from hopback.topology.check import check
from tests.faults.credentials import password_in
from tests.faults.ledger.application import Told, ledger_app
from tests.faults.ledger.entry import FilePen, Kind
from tests.faults.orphans import end_with_parent
from tests.faults.topologies import TOPOLOGIES
from tests.faults.tripwire import Point, Tripwire

if TYPE_CHECKING:
    from hopback.broker.rabbitmq.connection import RabbitConnection

__all__ = ["main"]

_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Counted(RabbitMQ):
    """A RabbitMQ client that counts its open channels."""

    def __init__(self, urls: list[str], folder: Path) -> None:
        super().__init__(urls, confirm_timeout=15, password=password_in(folder))
        self._made: list[RabbitConnection] = []

    async def connect(self, name: str = "hopback") -> RabbitConnection:
        """Open a connection. It is counted until it is closed."""
        connection = await super().connect(name)
        self._made = [one for one in self._made if not one._ended.done()]
        self._made.append(connection)
        return connection

    @property
    def channels(self) -> int:
        """The number of open channels."""
        return sum(len(one.wire.connection.channels) for one in self._made if not one._ended.done())


def _sample(pen: FilePen, broker: _Counted) -> None:
    """Record the resources of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    files = len(os.listdir("/proc/self/fd"))
    tasks = len(asyncio.all_tasks())
    note = f"rss={pages * _PAGE},fds={files},tasks={tasks},channels={broker.channels}"
    pen.write(Kind.SAMPLE, note=note)


async def _run(options: argparse.Namespace) -> None:
    pen = FilePen(Path(options.folder) / f"{options.name}.ledger", options.name, time.time)
    point, _, count = options.dies.partition(":")
    broker = _Counted(options.url, Path(options.folder))
    wire = Tripwire(broker, pen, Point(point) if point else None, int(count or 1))
    topology = TOPOLOGIES[options.design]()
    app = ledger_app(
        topology,
        pen,
        concurrency=options.concurrency,
        prefetch=options.prefetch,
        batch=tuple(options.batch),
        at_run=wire.at_run,
    )
    patience = Backoff(first=0.1, most=1.0)
    environment = Environment(bus=Bus(Told(pen)), backoff=patience, reconnect=patience)
    accept = {finding.rule for finding in check(topology)}  # the documented forms have hazards
    chosen = ServiceOptions(grace=10, watch=5, accept=accept)
    service = Service(app, wire, options=chosen, environment=environment)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.stop)
    running = asyncio.create_task(service.run())
    while not running.done():
        _sample(pen, broker)
        await asyncio.wait({running}, timeout=1.0)
    await running


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", action="append", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--design", choices=TOPOLOGIES, default="recommended")
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--prefetch", type=int)
    parser.add_argument("--batch", action="append", default=[])
    parser.add_argument("--dies", default="", help="POINT:COUNT, the step at which it kills itself")
    end_with_parent()
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
