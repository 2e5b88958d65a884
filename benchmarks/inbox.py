"""Measure transactions with an inbox mark, an insert and an outbox message in PostgreSQL: `python
-m benchmarks.inbox`.

The hand-written transaction executes the same three statements with SQLAlchemy, once as `text` and
once as expressions that are built for each call. The concurrency is 10, there is no broker, and the
rounds are interleaved. The CPU time is that of this process. The last row also relays the outbox to
a publisher that accepts all messages immediately.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import uuid
from typing import TYPE_CHECKING

from sqlalchemy import Column, MetaData, Table, Text, insert, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import create_async_engine
from tests.harness.postgres import PostgresNode

from hopback import compose
from hopback.store import Database
from hopback.store.database import inbox, outbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback import Message

    Handle = Callable[[str], Awaitable[None]]

_AT_ONCE = 10
_METADATA = MetaData()
_ORDERS = Table("orders", _METADATA, Column("id", Text, primary_key=True), Column("customer", Text))
_INSERT = text("INSERT INTO orders (id, customer) VALUES (:id, :customer)")
_MARK = text(
    "INSERT INTO hopback_inbox (consumer, message_id, processed_at) VALUES (:consumer, :id, :now)"
    " ON CONFLICT DO NOTHING RETURNING message_id"
)
_SEND = text(
    "INSERT INTO hopback_outbox"
    " (slot, key, message_id, exchange, routing_key, body, properties, created_at)"
    " VALUES (:slot, :key, :id, '', 'invoices', :body, '{}', :now)"
)
_PLAIN, _BUILT = "hand-written, text", "hand-written, expressions"
_OURS, _OURS_BUILT = "Hopback, text", "Hopback, expressions"
_RELAYED = "Hopback, text, with relay"


class _Accept:
    async def send(self, _message: Message, /) -> None:
        """Accept a message."""


async def _measure(handle: Handle, count: int) -> tuple[float, float]:
    """Return the transactions per second, and the CPU time of a transaction in microseconds."""
    ids = iter([str(uuid.uuid4()) for _ in range(count)])

    async def work() -> None:
        for one in ids:
            await handle(one)

    began, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    took = time.perf_counter() - began
    return count / took, (time.process_time() - spent) / count * 1e6


async def _run(url: str, rounds: int, count: int) -> dict[str, list[tuple[float, float]]]:
    plain = create_async_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), pool_size=_AT_ONCE
    )
    database = Database(url, tables=_METADATA)
    await database.prepare()

    async def by_text(one: str) -> None:
        body, now = json.dumps({"order": one}).encode(), time.time()
        async with plain.begin() as connection:
            mark = {"consumer": "orders", "id": one, "now": now}
            assert (await connection.execute(_MARK, mark)).first()
            await connection.execute(_INSERT, {"id": one, "customer": "c"})
            row = {"slot": 1, "key": "c", "id": one, "body": body, "now": now}
            await connection.execute(_SEND, row)

    async def by_expressions(one: str) -> None:
        body, now = json.dumps({"order": one}).encode(), time.time()
        mark = postgresql.insert(inbox).values(consumer="orders", message_id=one, processed_at=now)
        row = {"slot": 1, "key": "c", "message_id": one, "exchange": "", "routing_key": "invoices"}
        row |= {"body": body, "properties": "{}", "created_at": now}
        async with plain.begin() as connection:
            marked = mark.on_conflict_do_nothing().returning(inbox.c.message_id)
            assert (await connection.execute(marked)).first()
            await connection.execute(insert(_ORDERS).values(id=one, customer="c"))
            await connection.execute(insert(outbox).values(row))

    async def ours(one: str) -> None:
        async with database.transaction() as tx:
            assert await tx.first_time("orders", one)
            await tx.execute(_INSERT, {"id": one, "customer": "c"})
            await tx.send(compose("invoices", {"order": one}), key="c")

    async def ours_built(one: str) -> None:
        async with database.transaction() as tx:
            assert await tx.first_time("orders", one)
            await tx.execute(insert(_ORDERS).values(id=one, customer="c"))
            await tx.send(compose("invoices", {"order": one}), key="c")

    rows = {_PLAIN: by_text, _OURS: ours, _BUILT: by_expressions, _OURS_BUILT: ours_built}
    found: dict[str, list[tuple[float, float]]] = {}
    for handle in rows.values():
        await _measure(handle, 100)
    for _ in range(rounds):
        for name, handle in rows.items():
            found.setdefault(name, []).append(await _measure(handle, count))
    async with plain.begin() as connection:
        await connection.execute(text("TRUNCATE hopback_outbox"))
    async with database.lifespan(_Accept()):
        for _ in range(rounds):
            found.setdefault(_RELAYED, []).append(await _measure(ours, count))
    await plain.dispose()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inbox")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transactions", type=int, default=2000)
    options = parser.parse_args()
    node = PostgresNode().start()
    try:
        found = asyncio.run(_run(node.url(), options.rounds, options.transactions))
    finally:
        node.remove()
    print("| | transactions a second | CPU µs | times hand-written |\n|---|---|---|---|")
    median = {name: [statistics.median(each) for each in zip(*runs, strict=True)]
              for name, runs in found.items()}  # fmt: skip
    for name, (rate, cpu) in median.items():
        against = median[_BUILT if "expressions" in name else _PLAIN]
        print(f"| {name} | {rate:,.0f} | {cpu:,.0f} | {rate / against[0]:.2f} |")


if __name__ == "__main__":
    main()
