"""`hopback store relay` as a process on RabbitMQ loses no message when it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from hopback import RabbitMQ, compose
from hopback.clock import SystemClock
from hopback.store import Outbox, transaction
from hopback.topology import Queue
from tests.integration.database import database_url, engine
from tests.integration.waiting import until

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.message import Delivery

__all__ = ["database_url", "engine"]

pytestmark = pytest.mark.broker

_MESSAGES = 600
_CLOCK = SystemClock()


@asynccontextmanager
async def _relay(database: str, broker: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hopback", "store", "relay", "--idle", "0.05"),
        env={**os.environ, "HOPBACK_DATABASE": database, "HOPBACK_BROKER": broker},
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _leave_messages(engine: AsyncEngine) -> None:
    """Ten keys, numbered within each, and one message that no broker can take."""
    async with transaction(engine, _CLOCK) as tx:
        lost = compose("x", b"", exchange="no.such.exchange", message_id="hopeless")
        await tx.send(lost, key="hopeless")
        for number in range(_MESSAGES):
            key = f"k{number % 10}"
            await tx.send(compose("events", number, message_type=key), key=key)


async def test_killed_relay_is_replaced_without_loss(
    engine: AsyncEngine, database_url: str, amqp_url: str
) -> None:
    """Keys keep their order. Messages in flight may be repeated with their id."""
    got: list[Delivery] = []
    connection = await RabbitMQ(amqp_url).connect("test")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("events"))
    await channel.consume("events", got.append)
    await _leave_messages(engine)
    outbox = Outbox(engine, "test", _CLOCK)
    async with _relay(database_url, amqp_url) as first:
        await until(lambda: len(got) > 100)
        first.kill()
        await first.wait()
    await _expire_leases(engine)
    async with _relay(database_url, amqp_url) as one, _relay(database_url, amqp_url) as two:
        for process in (one, two):
            assert process.stderr is not None
            await process.stderr.readuntil(b"ready")  # it hears signals from before that
        await until(lambda: len({d.properties.message_id for d in got}) == _MESSAGES)
        for process in (one, two):
            process.send_signal(signal.SIGTERM)
            out, err = await process.communicate()
            assert process.returncode == 0, err.decode()
            assert out.startswith(b"Stopped.")
    assert await outbox.depth() == 1  # the unpublishable one, which delayed no others
    for key in {d.properties.type for d in got}:
        firsts = list(dict.fromkeys(int(d.body) for d in got if d.properties.type == key))
        assert firsts == sorted(firsts)
    await connection.close()


async def _expire_leases(engine: AsyncEngine) -> None:
    """Half a minute later, without waiting for it."""
    from sqlalchemy import update

    from hopback.store.database import outbox_slots

    async with engine.begin() as connection:
        await connection.execute(update(outbox_slots).values(leased_until=0.0))
