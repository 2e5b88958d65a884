"""The tools of every part: database, outbox with its relay, storage and clock."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from hopback import HopbackError, Relay, SystemClock
from hopback.store import Outbox, forget_processed, migrate, open_database, transaction
from hopback.systems.file_pipeline.messages import message_of
from hopback.systems.file_pipeline.storage import open_storage
from hopback.systems.file_pipeline.tables import create_tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback import Clock, Message
    from hopback.store import Transaction
    from hopback.systems.file_pipeline.messages import PipelineMessage, PipelinePayload
    from hopback.systems.file_pipeline.settings import PipelineSettings
    from hopback.systems.file_pipeline.storage import FileStorage

_LOG = logging.getLogger("hopback.systems.file_pipeline")
_REST_S = 1.0
"""Seconds between two attempts. A starting database needs seconds."""
_LONGEST_WAIT_S = 20.0
"""Seconds to wait for the database at startup. PostgreSQL starts faster. Then the process ends."""
_REMEMBERED_S = 30 * 24 * 3600.0
"""Seconds that inbox marks are kept. Dead letters should be re-driven or discarded earlier."""
_FORGET_EVERY_S = 6 * 3600.0
"""Seconds between two removals of old marks."""


class NotReady(HopbackError):
    """The storage or the database of the pipeline cannot be used."""

    remedy: ClassVar[str] = (
        "Start the database, or correct DATABASE_URL, FILES_FOLDER and FILES_STORAGE."
    )


class PartRuntime:
    """The tools of one process. `open` is entered while the process works."""

    def __init__(self, settings: PipelineSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.storage: FileStorage = open_storage(settings)
        self._engine: AsyncEngine | None = None
        self._relay: Relay | None = None
        self._attendants: list[Callable[[], Awaitable[None]]] = []

    def attend(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a function while the runtime is open."""
        self._attendants.append(work)

    @property
    def engine(self) -> AsyncEngine:
        """The database. Raises RuntimeError while the runtime is closed."""
        if self._engine is None:
            raise RuntimeError("the runtime is closed: work inside `open`")
        return self._engine

    async def check_database(self) -> str | None:
        """Return the reason why the database cannot be used now, or None."""
        try:
            async with self.engine.connect() as connection:
                await connection.execute(select(1))
        except (SQLAlchemyError, OSError, RuntimeError) as error:
            return f"the database does not answer: {type(error).__name__}"
        return None

    @asynccontextmanager
    async def open(
        self, publish: Callable[[Message], Awaitable[None]]
    ) -> AsyncIterator[PartRuntime]:
        """Prepare tables and storage, and publish the outbox until the block ends."""
        try:
            await asyncio.to_thread(self.storage.prepare, self.clock.now())
        except OSError as error:
            where = self.settings.storage or self.settings.folder
            raise NotReady(f"{where} cannot be used: {error.strerror or error}") from error
        self._engine = open_database(self.settings.database_url)
        try:
            await self._prepare_database()
            owner = f"{socket.gethostname()}:{os.getpid()}:{id(self):x}"
            self._relay = Relay(Outbox(self._engine, owner, self.clock), publish)
            works = (_run_relay(self._relay), self._forget(), *(one() for one in self._attendants))
            tasks = [asyncio.ensure_future(work) for work in works]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            # Publish the outputs of the last handlers. If that fails, they stay in the outbox.
            try:
                await self._relay.sweep()
            except Exception:
                _LOG.exception(
                    "the outbox was not emptied at the end. Its messages are published at the next start"
                )
        finally:
            await self._engine.dispose()
            self._engine = None

    async def _prepare_database(self) -> None:
        """Create the tables. Wait for a database that is starting."""
        waited = 0.0
        while True:
            try:
                await migrate(self.engine, self.clock)
                return await create_tables(self.engine)
            except (SQLAlchemyError, OSError) as error:
                if waited >= _LONGEST_WAIT_S:
                    reason = f"the database does not answer: {type(error).__name__}"
                    raise NotReady(reason) from error
                _LOG.warning("the database does not answer yet: %s", type(error).__name__)
            await asyncio.sleep(_REST_S)
            waited += _REST_S

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Open a transaction. Its outbox messages are published right after the commit."""
        async with transaction(self.engine, self.clock) as tx:
            yield tx
        if self._relay is not None:
            self._relay.nudge()

    async def announce(
        self,
        tx: Transaction,
        payload: PipelinePayload,
        *,
        producer: str,
        correlation_id: str | None = None,
        cause: PipelineMessage | None = None,
        occasion: str = "",
    ) -> None:
        """Publish after the commit. Messages of one file keep their order."""
        message = message_of(
            payload,
            producer=producer,
            now=self.clock.now(),
            correlation_id=correlation_id,
            cause=cause,
            occasion=occasion,
        )
        await tx.send(message, key=payload.fileId)

    async def conclude(
        self, consumer: str, cause: PipelineMessage, *results: PipelinePayload, producer: str
    ) -> None:
        """Mark a message as processed and announce its results, both or neither."""
        async with self.transaction() as tx:
            if await tx.first_time(consumer, cause.messageId):
                for result in results:
                    await self.announce(tx, result, producer=producer, cause=cause)

    async def _forget(self) -> None:
        """Remove old inbox marks regularly."""
        while True:
            try:
                await forget_processed(self.engine, self.clock.now() - _REMEMBERED_S)
            except Exception:
                _LOG.exception(
                    "old marks were not removed. The next attempt follows in %.0f s",
                    _FORGET_EVERY_S,
                )
            await asyncio.sleep(_FORGET_EVERY_S)


async def _run_relay(relay: Relay) -> None:
    """Run the relay. Start it again if the database was away."""
    while True:
        try:
            await relay.run()
        except Exception:
            _LOG.exception("the outbox relay failed and is started again")
            await asyncio.sleep(_REST_S)
