"""The relay in virtual time: it waits for commits and due retries instead of polling the outbox."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event

from hopback import Message, Relay, compose
from hopback.broker.embedded.virtual_time import VirtualTimeLoop
from hopback.broker.supervise import Backoff
from hopback.errors import ConnectionFailed, Returned
from hopback.store import CursorTransaction, Database, Outbox, migrate, open_database, transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine

_DAY_S = 86_400


class _CountingLoop(VirtualTimeLoop):
    """Counts how often virtual time advances."""

    jumps = 0

    def jump(self, seconds: float) -> None:
        self.jumps += 1
        super().jump(seconds)


class _Sink:
    """Records when messages are published. The first publishes raise `errors`."""

    def __init__(self, *errors: Exception) -> None:
        self.published: list[tuple[float, str]] = []
        self.tried: list[float] = []
        self._errors = list(errors)

    async def send(self, message: Message) -> None:
        now = asyncio.get_running_loop().time()
        self.tried.append(now)
        if self._errors:
            raise self._errors.pop(0)
        self.published.append((now, message.routing_key))


class _Place:
    """An outbox in a file, with the number of its claims."""

    def __init__(self, engine: AsyncEngine, loop: _CountingLoop) -> None:
        self.engine = engine
        self.loop = loop
        self.outbox = Outbox(engine, "test", loop)
        self.claims = 0
        event.listen(engine.sync_engine, "before_cursor_execute", self._count)

    def _count(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        self.claims += "leased_by" in statement and "RETURNING" in statement

    @asynccontextmanager
    async def relay(self, publish: Callable[[Message], Awaitable[None]]) -> AsyncIterator[Relay]:
        relay = Relay(self.outbox, publish, backoff=Backoff(first=1.0, most=60.0))
        running = asyncio.create_task(relay.run())
        try:
            yield relay
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _play(folder: Path, play: Callable[[_Place], Coroutine[Any, Any, None]]) -> None:
    async def with_database() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _CountingLoop)
        engine = open_database(f"sqlite:///{folder / 'shop.db'}")
        await migrate(engine, loop)
        try:
            await play(_Place(engine, loop))
        finally:
            await engine.dispose()

    with asyncio.Runner(loop_factory=_CountingLoop) as runner:
        runner.run(with_database())


def test_idle_relay_rests_for_virtual_days(tmp_path: Path) -> None:
    async def play(place: _Place) -> None:
        async with place.relay(_Sink().send):
            before = place.loop.jumps
            await asyncio.sleep(2 * _DAY_S)
            assert place.loop.jumps - before < 100
            assert place.claims < 100

    _play(tmp_path, play)


def test_commits_of_a_database_cost_one_sweep_each(tmp_path: Path) -> None:
    """They are published at the virtual time of the commit."""

    async def play(place: _Place) -> None:
        sink, database = _Sink(), Database(place.engine)
        async with database.lifespan(sink):
            await asyncio.sleep(_DAY_S)
            before = place.claims
            for number in range(20):
                await asyncio.sleep(60)
                async with database.transaction() as tx:
                    await tx.send(compose("orders", number))
                committed = place.loop.time()
                await asyncio.sleep(0.0001)
                assert [at for at, _ in sink.published[number:]] == [committed]
            assert place.claims - before <= 3 * 20

    _play(tmp_path, play)


@pytest.mark.parametrize("open_s", [0, 0.4])
def test_message_of_another_transaction_is_published_soon_after_its_commit(
    tmp_path: Path, open_s: float
) -> None:
    """The relay is not woken by the commit. It reads at growing intervals after the write."""

    async def play(place: _Place) -> None:
        sink = _Sink()
        async with place.relay(sink.send):
            await asyncio.sleep(_DAY_S)
            async with transaction(place.engine) as tx:
                await tx.send(compose("orders", 1))
                await asyncio.sleep(open_s)
            committed = place.loop.time()
            await asyncio.sleep(_DAY_S)
            [(at, _)] = sink.published
            assert at - committed <= 0.5 + open_s

    _play(tmp_path, play)


def test_message_of_a_cursor_in_a_thread_is_published_within_a_second(tmp_path: Path) -> None:
    def write() -> None:
        connection = sqlite3.connect(tmp_path / "shop.db")
        CursorTransaction(connection.cursor(), placeholder="?").send(compose("orders", 1))
        connection.commit()
        connection.close()

    async def play(place: _Place) -> None:
        sink = _Sink()
        async with place.relay(sink.send):
            await asyncio.sleep(_DAY_S)
            await asyncio.to_thread(write)
            written = place.loop.time()
            await asyncio.sleep(1)
            [(at, _)] = sink.published
            assert at - written <= 1

    _play(tmp_path, play)


def test_failed_message_is_retried_when_it_is_due_and_not_read_meanwhile(tmp_path: Path) -> None:
    async def play(place: _Place) -> None:
        sink = _Sink(*(Returned("", "orders") for _ in range(20)))
        async with transaction(place.engine) as tx:
            await tx.send(compose("orders", 1))
        async with place.relay(sink.send):
            await asyncio.sleep(_DAY_S)
        assert len(sink.published) == 1
        waits = [round(b - a) for a, b in zip(sink.tried, sink.tried[1:], strict=False)]
        assert waits[-1] == 45  # the longest backoff, with its mean chance
        assert place.claims < 20 * 3 + 40

    _play(tmp_path, play)


def test_failing_slots_do_not_delay_messages_of_other_slots(tmp_path: Path) -> None:
    """A claim takes 16 slots. The other ones follow without a retry in between."""

    async def play(place: _Place) -> None:
        refused = 0

        async def publish(message: Message) -> None:
            nonlocal refused
            if message.routing_key == "nowhere":
                refused += 1
                raise Returned("", "nowhere")
            await sink.send(message)

        sink = _Sink()
        async with transaction(place.engine) as tx:
            for number in range(100):
                await tx.send(compose("nowhere", number))
        async with place.relay(publish):
            await asyncio.sleep(30)
            assert refused >= 100
            async with transaction(place.engine) as tx:
                for number in range(20):
                    await tx.send(compose("orders", number))
            await asyncio.sleep(30)
            assert len(sink.published) == 20

    _play(tmp_path, play)


def test_relay_without_a_connection_tries_again_soon(tmp_path: Path) -> None:
    async def play(place: _Place) -> None:
        sink = _Sink(ConnectionFailed("down"), ConnectionFailed("down"))
        async with transaction(place.engine) as tx:
            await tx.send(compose("orders", 1))
        async with place.relay(sink.send):
            began = place.loop.time()
            await asyncio.sleep(10)
        [(at, _)] = sink.published
        assert at - began <= 1.1

    _play(tmp_path, play)
