"""The database of an application, with inbox, outbox and relay.

    database = Database("postgresql://…", tables=Base.metadata)
    app = App("shop", lifespan=database.lifespan)

    @app.handler("orders", retry=["30s"])
    async def handle(order: Order, context: Context) -> None:
        async with database.transaction() as tx:
            if await tx.first_time("orders", context.delivery):
                await tx.execute(…)
                await tx.send(compose("invoices", …))

Tables are created when the database is first used, so the application can be started before the
database.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from hopback.clock import Clock, SystemClock
from hopback.durations import Duration, read_seconds
from hopback.errors import HopbackError
from hopback.runtime.relay import Relay
from hopback.store.database import migrate, open_database
from hopback.store.transaction import Outbox, forget_processed, transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator

    from sqlalchemy import MetaData
    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.message import Message
    from hopback.store.transaction import Transaction

_LOG = logging.getLogger("hopback.store")
_RETRY_S = 1.0
"""Seconds between attempts to connect to the database."""
_FORGET_EVERY_S = 6 * 3600.0
"""Seconds between deletions of old inbox entries."""
_REMEMBER = timedelta(days=30)
"""How long inbox entries are kept. Dead letters are usually handled within this time."""


class OutboxSender(Protocol):
    """An object that can publish messages: an `App`, a `Publisher` or a `Service`."""

    def send(self, message: Message, /) -> Awaitable[None]:
        """Publish a message and wait for the confirm."""


class Database:
    """The tables, inbox and outbox of an application.

    Args:
        url: URL of the database.
        tables: Tables of the application. Missing tables are created.
        remember: How long inbox entries are kept.
        relays: If False, this process does not publish messages from the outbox.
    """

    def __init__(
        self,
        url: str | AsyncEngine,
        *,
        tables: MetaData | None = None,
        clock: Clock | None = None,
        remember: Duration = _REMEMBER,
        relays: bool = True,
    ) -> None:
        self.engine: AsyncEngine = open_database(url) if isinstance(url, str) else url
        self.clock: Clock = clock or SystemClock()
        self._tables = tables
        self._remember_s = read_seconds(remember, "remember", where="Database")
        self._relays = relays
        self._relay: Relay | None = None
        self._preparing = asyncio.Lock()
        self._is_prepared = False

    @contextmanager
    def override(self, url: str | AsyncEngine) -> Iterator[None]:
        """Use another database within this context, for example in a test.

        Transactions and lifespans that begin in this context use it. Its connections are closed by the
        lifespan or by `close`.
        """
        before = self.engine, self._preparing, self._is_prepared
        self.engine = open_database(url) if isinstance(url, str) else url
        self._preparing, self._is_prepared = asyncio.Lock(), False
        try:
            yield
        finally:
            self.engine, self._preparing, self._is_prepared = before

    async def prepare(self) -> None:
        """Create missing tables. Later calls have no effect."""
        async with self._preparing:
            if not self._is_prepared:
                await migrate(self.engine, self.clock, also=self._tables)
                self._is_prepared = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Open a transaction.

        The transaction is committed at the end of the block, or rolled back if the block raises an
        exception. Messages sent in the transaction are published after the commit.
        """
        if not self._is_prepared:
            await self.prepare()
        async with transaction(self.engine, self.clock) as tx:
            tx.reports_writes = self._relay is None
            yield tx
        if tx.has_sent and self._relay is not None:
            self._relay.nudge()

    async def check(self) -> str | None:
        """Check the connection. Returns an error message, or None if the database is available."""
        try:
            async with self.engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
        except (SQLAlchemyError, HopbackError, OSError) as error:
            return f"the database does not answer: {type(error).__name__}"
        return None

    @asynccontextmanager
    async def lifespan(self, sender: OutboxSender) -> AsyncIterator[None]:
        """Publish messages from the outbox and delete old inbox entries in the background.

        Pass this as the `lifespan` of an `App`. Programs without an `App` can pass a `Publisher`.
        The connections are closed at the end of the block.
        """
        works: list[Coroutine[Any, Any, None]] = [_repeat(self._forget)]
        if self._relays:
            owner = f"{socket.gethostname()}:{os.getpid()}:{id(self):x}"
            self._relay = Relay(Outbox(self.engine, owner, self.clock), sender.send)
            works.append(_repeat(self._run_relay))
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            relay, self._relay = self._relay, None
            # Publish the remaining messages. If this fails, they are published after the next
            # start.
            with suppress(SQLAlchemyError, HopbackError, OSError):
                if relay is not None and self._is_prepared:
                    await relay.sweep()
            await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.engine.dispose()

    async def _run_relay(self) -> None:
        await self.prepare()
        if self._relay is not None:
            await self._relay.run()

    async def _forget(self) -> None:
        await self.prepare()
        while True:
            await forget_processed(self.engine, self.clock.now() - self._remember_s)
            await asyncio.sleep(_FORGET_EVERY_S)


async def _repeat(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`, and restart it after an error. Otherwise the outbox would stop publishing."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - this is a coroutine
    while True:
        try:
            return await work()
        except (SQLAlchemyError, HopbackError, OSError) as error:
            _LOG.warning("the database does not answer, next attempt in 1 s: %s", error)
        except Exception:
            _LOG.exception("an unexpected error of the outbox or inbox, next attempt in 1 s")
        if task.cancelling():
            raise asyncio.CancelledError  # an error during the cancellation has replaced it
        await asyncio.sleep(_RETRY_S)
