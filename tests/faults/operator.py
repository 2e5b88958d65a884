"""A process that acts as an operator: `python -m tests.faults.operator`. It re-drives or discards
dead letters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hopback import RabbitMQ
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import DiscardRequest, RedriveRequest, Selection, Submission
from hopback.ops.operations import Operations
from tests.faults.credentials import password_in
from tests.faults.ledger.books import OPERATOR
from tests.faults.ledger.entry import FilePen, Kind
from tests.faults.ledger.order import Order
from tests.faults.orphans import end_with_parent
from tests.faults.topologies import TOPOLOGIES
from tests.faults.tripwire import Point, Tripwire

if TYPE_CHECKING:
    from hopback.ops.contract.requests import JobRequest

__all__ = ["main"]


async def _run(options: argparse.Namespace) -> None:
    folder = Path(options.folder)
    pen = FilePen(folder / f"{options.name}.ledger", options.name, time.time)
    point, _, count = options.dies.partition(":")
    wire = Tripwire(
        RabbitMQ(options.url, confirm_timeout=15, password=password_in(folder)),
        pen,
        Point(point) if point else None,
        int(count or 1),
        scope=OPERATOR,
    )
    topology = TOPOLOGIES[options.design]()
    async with Operations(ManagedBroker(wire, topologies=[topology])) as operations:
        for queue in sorted({plan.parking.queue for plan in topology.plans}):
            export = folder / f"{options.name}-{queue}.ndjson"
            request = _request(queue, discard=options.discard)
            job = await operations.start(request, Submission(export_to=str(export)))
            ended = await operations.wait(job.id)
            sys.stdout.write(f"{queue}: {ended.state} {ended.counts} {ended.state_reason}\n")
            if options.discard:
                _book(folder, queue, pen)


def _request(queue: str, *, discard: bool) -> JobRequest:
    if discard:
        return DiscardRequest(
            queue=queue,
            selection=Selection(),
            reason="proof",
            confirm=queue,
            force=True,
        )
    return RedriveRequest(queue=queue, selection=Selection(), reason="proof", force=True)


def _book(folder: Path, queue: str, pen: FilePen) -> None:
    """Record all messages in the archives as discarded, including those of discards that were
    killed.
    """
    exports = [path.read_text(encoding="utf-8") for path in folder.glob(f"o*-{queue}*")]
    for line in "".join(exports).splitlines():
        message = json.loads(line)
        if "properties" in message:
            # An order only fails in its first queue.
            order = Order.read(message["body"].encode())
            pen.write(Kind.DISCARDED, order.id, order.to[0])


def main() -> None:
    """Process all dead-letter queues of the topology."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", action="append", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--name", default="operator")
    parser.add_argument("--design", choices=TOPOLOGIES, default="recommended")
    parser.add_argument("--dies", default="", help="POINT:COUNT, the step at which it kills itself")
    parser.add_argument("--discard", action="store_true")
    end_with_parent()
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
