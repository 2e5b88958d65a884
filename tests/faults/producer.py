"""A process that publishes messages: `python -m tests.faults.producer`. If a message is not
confirmed, it is published again.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hopback import RabbitMQ
from hopback.errors import BrokerError
from tests.faults.credentials import password_in
from tests.faults.ledger.entry import FilePen, Kind
from tests.faults.ledger.order import Fate, Order, fates
from tests.faults.orphans import end_with_parent
from tests.faults.topologies import TOPOLOGIES, address_of

if TYPE_CHECKING:
    from hopback.broker.port import Channel, Connection
    from hopback.topology import Topology

__all__ = ["main"]


class _Producer:
    """Publishes a range of orders. Orders that are not confirmed are published again."""

    def __init__(self, pen: FilePen, topology: Topology, options: argparse.Namespace) -> None:
        self._pen = pen
        self._topology = topology
        self._options = options
        self._fates = (Fate(options.fate),) if options.fate else fates(options.failing)
        self.waiting = deque(range(options.first, options.first + options.messages))
        self.in_flight = 0
        self._began = time.monotonic()
        self._given = 0

    async def run(self, broker: RabbitMQ) -> None:
        """Publish until everything is confirmed. After an error, connect again."""
        while self.waiting or self.in_flight:
            with suppress(BrokerError, OSError):
                connection = await broker.connect("producer")
                try:
                    await self._publish_on(connection)
                finally:
                    await connection.close()
            await asyncio.sleep(0.2)

    async def _publish_on(self, connection: Connection) -> None:
        channel = await connection.open_channel()
        while self.waiting or self.in_flight:
            if not self.waiting:
                await asyncio.sleep(0.05)
                await channel.room()
                continue
            await channel.room()
            await self._keep_pace()
            self._send(channel, self.waiting.popleft())

    async def _keep_pace(self) -> None:
        """Wait if more messages were published than the rate allows."""
        self._given += 1
        if self._options.rate and self._given % 20 == 0:
            due = self._began + self._given / self._options.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _send(self, channel: Channel, number: int) -> None:
        to, exchange, key = address_of(self._topology, number)
        fate = self._fates[number % len(self._fates)]
        lane = f"k{number % 50}" if number % 10 == 0 and self._options.lanes else "-"
        order = Order(number, to, fate, lane, self._options.pause)
        self._pen.write(Kind.SENT, order.id, fate.value, note=f"{','.join(to)};{lane}")
        try:
            sent = channel.publish(order.message(exchange, key, self._options.size))
        except BrokerError:
            self.waiting.append(number)
            raise
        self.in_flight += 1
        sent.add_done_callback(lambda fate: self._settle(fate, number))

    def _settle(self, fate: asyncio.Future[None], number: int) -> None:
        self.in_flight -= 1
        if fate.cancelled() or fate.exception() is not None:
            self.waiting.append(number)
        else:
            self._pen.write(Kind.CONFIRMED, str(number))


async def _run(options: argparse.Namespace) -> None:
    pen = FilePen(Path(options.folder) / f"{options.name}.ledger", options.name, time.time)
    producer = _Producer(pen, TOPOLOGIES[options.design](), options)
    secret = password_in(Path(options.folder))
    broker = RabbitMQ(options.url, confirm_timeout=15, window=options.window, password=secret)
    await producer.run(broker)


def main() -> None:
    """Publish messages and exit when all of them are confirmed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", action="append", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--name", default="producer")
    parser.add_argument("--design", choices=TOPOLOGIES, default="recommended")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--failing", type=float, default=0.05)
    parser.add_argument("--fate", default="")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="messages per second, 0 without a limit"
    )
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--pause", type=int, default=0, help="ms that each handler takes")
    parser.add_argument("--window", type=int, default=300)
    parser.add_argument("--lanes", action="store_true", help="give some messages an order to keep")
    end_with_parent()
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
