"""Writes what a deployment of the earlier version leaves behind. It runs on that version, not on this one.

`python -m tests.upgrade.earlier` takes that version out of the history and runs this program on it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

from hopback import App, Context, EmbeddedBroker, Park, Service, compose
from hopback.admin.keys import KeyRing, new_key
from hopback.admin.roles import Grant, Role
from hopback.broker.simulator import EmbeddedManagement
from hopback.clock import SystemClock
from hopback.deadletters.archive import write_line
from hopback.deadletters.letters import content_digest
from hopback.deadletters.operations import Operations
from hopback.deadletters.pacing import Pace
from hopback.deadletters.requests import FromHead, RedriveRequest, Who
from hopback.deadletters.sql_journal import SqlJournal
from hopback.store import migrate, open_database, transaction
from hopback.store.keys import KeyTable
from hopback.topology.toml import write_toml
from hopback.version import BrokerVersion

WAITING, PARKED, CHOSEN, MOVED = 6, 40, 30, 10
QUEUES = ("orders", "orders.retry.1h", "orders.dlq")

app = App("shop")


@app.handler("orders", retry=["1h", "2h"])
async def handle(order: dict, context: Context):
    """Some fail and wait, the others are parked."""
    if order["id"] < WAITING:
        raise ConnectionError("the warehouse does not answer")
    return Park("no such article")


async def counts(broker):
    """How many messages each queue has."""
    connection = await broker.connect("look")
    channel = await connection.open_channel()
    found = [
        (await channel.declare_queue(app.topology.queue(name), passive=True)).messages
        for name in QUEUES
    ]
    await connection.close()
    return found


async def work_through(broker):
    """Publish, let the service fail, stop it."""
    service = Service(app, broker)
    task = asyncio.create_task(service.run())
    await service.ready.wait()
    connection = await broker.connect("producer")
    channel = await connection.open_channel()
    for number in range(WAITING + PARKED):
        await channel.publish(compose("", "orders", {"id": number}, message_id=f"m-{number}"))
    await connection.close()
    while await counts(broker) != [0, WAITING, PARKED]:
        await asyncio.sleep(0.01)
    service.stop()
    await task


async def recorded(broker):
    """Everything in every queue, as lines of an archive."""
    connection = await broker.connect("record")
    channel = await connection.open_channel()
    lines, returned, digests = [], [], []
    for name in QUEUES:
        while delivery := await channel.get(name):
            lines.append(write_line(delivery))
            digests.append(content_digest(delivery))
            if delivery.redelivered:
                returned.append(delivery.properties.message_id)
    await connection.close()
    return b"".join(lines), returned, digests


async def main(folder: Path) -> None:
    """Write everything into a folder."""
    broker = EmbeddedBroker(version=BrokerVersion(3, 10))
    clock = SystemClock()
    (folder / "topology.toml").write_text(write_toml(app.topology))
    await work_through(broker)
    store = folder / "store.db"
    engine = open_database(f"sqlite:///{store}")
    await migrate(engine, clock)
    async with transaction(engine, clock) as open_transaction:
        await open_transaction.first_time("billing", "m-1")
        for number in range(3):
            await open_transaction.publish(
                compose("", "orders", {"id": 1000 + number}, message_id=f"outbox-{number}"),
                key="customer-7",
            )
    _, key = new_key(
        "vera", Grant(Role.VIEWER, ("orders*",)), expires=None, made_by="ann", now=clock.now()
    )
    await KeyRing(store=KeyTable(engine)).add(key)
    ann = Who("u-1", "Ann")
    async with Operations(
        broker,
        management=EmbeddedManagement(broker),
        topologies=[app.topology],
        journal=SqlJournal(engine, clock),
        clock=clock,
    ) as operations:
        (folder / "export.ndjson").write_bytes(
            b"".join([part async for part in operations.export("orders.dlq", limit=5)])
        )
        request = RedriveRequest(
            queue="orders.dlq",
            selection=FromHead(CHOSEN),
            reason="the article is there again",
            by=ann,
            pace=Pace(rate=100.0, in_flight=1),
            key="redrive-7",
        )
        job = await operations.start(request)
        while (await operations.job(job.id)).counts.done < MOVED:
            await asyncio.sleep(0.005)
    await engine.dispose()
    lines, returned, digests = await recorded(broker)
    (folder / "messages.ndjson").write_bytes(lines)
    # What had been in somebody's hands before, which the form of an export does not say.
    (folder / "returned.txt").write_text("\n".join(returned) + "\n")
    # By these a job knows the messages that somebody has chosen one by one.
    (folder / "digests.txt").write_text("\n".join(digests) + "\n")
    dumped = sqlite3.connect(store)
    (folder / "store.sql").write_text("\n".join(dumped.iterdump()) + "\n")
    dumped.close()
    store.unlink()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
