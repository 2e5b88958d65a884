"""What every part works with: the database, the outbox and its relay, the storage, the time."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

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
"""Between two tries: a database that starts needs seconds, and the log stays readable."""
_LONGEST_WAIT_S = 20.0
"""Longer than PostgreSQL takes to start beside us; then the supervisor should know."""
_REMEMBERED_S = 30 * 24 * 3600.0
"""Longer than any dead letter rests before it is re-driven or discarded."""
_FORGET_EVERY_S = 6 * 3600.0
"""Often enough that no run of it takes long."""


class NotReady(HopbackError):
    """The storage or the database of the pipeline cannot be used."""

    remedy: ClassVar[str] = (
        "Start the database, or correct DATABASE_URL, FILES_FOLDER and FILES_STORAGE."
    )


class PartRuntime:
    """One process's tools. Opened for as long as the process works."""

    def __init__(self, settings: PipelineSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.storage: FileStorage = open_storage(settings)
        self._engine: AsyncEngine | None = None
        self._relay: Relay | None = None
        self._attendants: list[Callable[[], Awaitable[None]]] = []

    def attend(self, work: Callable[[], Awaitable[None]]) -> None:
        """Have something run for as long as the runtime is open."""
        self._attendants.append(work)

    @property
    def engine(self) -> AsyncEngine:
        """The database, while the runtime is open."""
        if self._engine is None:
            raise RuntimeError("the runtime is closed: work inside `open`")
        return self._engine

    @asynccontextmanager
    async def open(
        self, publish: Callable[[Message], Awaitable[None]]
    ) -> AsyncIterator[PartRuntime]:
        """Have the tables and the folder ready, and the outbox published, until the block ends."""
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
            works = (_relaying(self._relay), self._forget(), *(one() for one in self._attendants))
            tasks = [asyncio.ensure_future(work) for work in works]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            # Publish what the last handlers left; whatever cannot go now stays in the outbox.
            try:
                await self._relay.sweep()
            except Exception:
                _LOG.exception(
                    "the outbox was not emptied at the end; its messages go at the next start"
                )
        finally:
            await self._engine.dispose()
            self._engine = None

    async def _prepare_database(self) -> None:
        """Have the tables; a database that is still starting is waited for a while."""
        waited = 0.0
        while True:
            try:
                await migrate(self.engine, self.clock)
                return await create_tables(self.engine)
            except (SQLAlchemyError, OSError) as error:
                if waited >= _LONGEST_WAIT_S:
                    what = f"the database does not answer: {type(error).__name__}"
                    raise NotReady(what) from error
                _LOG.warning("the database does not answer yet: %s", type(error).__name__)
            await asyncio.sleep(_REST_S)
            waited += _REST_S

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """One transaction; what it leaves in the outbox is published right after the commit."""
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
        """Publish after the commit; the messages of one file keep their order."""
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
        """Note that a message was processed, and announce what came of it: both, once, or neither."""
        async with self.transaction() as tx:
            if await tx.first_time(consumer, cause.messageId):
                for result in results:
                    await self.announce(tx, result, producer=producer, cause=cause)

    async def _forget(self) -> None:
        """Forget now and then what was processed so long ago that nobody sends it again."""
        while True:
            try:
                await forget_processed(self.engine, self.clock.now() - _REMEMBERED_S)
            except Exception:
                _LOG.exception("old marks were not removed; the next time they will be")
            await asyncio.sleep(_FORGET_EVERY_S)


async def _relaying(relay: Relay) -> None:
    """Keep the relay at work; a database that is away for a while must not end it."""
    while True:
        try:
            await relay.run()
        except Exception:
            _LOG.exception("the outbox relay failed and tries again")
            await asyncio.sleep(_REST_S)
