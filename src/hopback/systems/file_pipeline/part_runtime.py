"""The resources that all parts use: the database with inbox and outbox, the storage and the clock."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy.exc import SQLAlchemyError

from hopback import HopbackError
from hopback.runtime import SystemClock
from hopback.store import Database
from hopback.systems.file_pipeline.storage import open_storage
from hopback.systems.file_pipeline.tables import METADATA

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hopback import App
    from hopback.runtime import Clock
    from hopback.systems.file_pipeline.settings import PipelineSettings
    from hopback.systems.file_pipeline.storage import FileStorage
    from hopback.systems.web import TopologyPublisher

_LOG = logging.getLogger("hopback.systems.file_pipeline")
_STARTUP_S = 20
"""Seconds to wait for the database at startup, which is longer than PostgreSQL needs to start.
After this the process exits.
"""


class NotReady(HopbackError):
    """The storage or the database of the pipeline is not usable."""

    remedy: ClassVar[str] = (
        "Start the database, or correct DATABASE_URL, FILES_FOLDER and FILES_STORAGE."
    )


class PartRuntime:
    """The resources of one process. They are available inside of `open`.

    If `relays` is False, the process does not publish messages from the outbox.
    """

    def __init__(
        self, settings: PipelineSettings, clock: Clock | None = None, *, relays: bool = True
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.storage: FileStorage = open_storage(settings)
        self.database = Database(
            settings.database_url, tables=METADATA, clock=self.clock, relays=relays
        )
        self._attendants: list[Callable[[], Awaitable[None]]] = []

    def attend(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a function in the background while the runtime is open."""
        self._attendants.append(work)

    @asynccontextmanager
    async def open(self, sender: App | TopologyPublisher) -> AsyncIterator[None]:
        """Prepare the tables and the storage, and publish messages from the outbox until the block
        ends.
        """
        try:
            await asyncio.to_thread(self.storage.prepare, self.clock.now())
        except OSError as error:
            where = self.settings.storage or self.settings.folder
            raise NotReady(f"{where} cannot be used: {error.strerror or error}") from error
        await self._prepare_database()
        async with self.database.lifespan(sender):
            tasks = [asyncio.ensure_future(work()) for work in self._attendants]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _prepare_database(self) -> None:
        """Create the tables. This waits for a database that is still starting."""
        waited = 0
        while True:
            try:
                return await self.database.prepare()
            except (SQLAlchemyError, OSError) as error:
                reason = f"the database does not answer: {type(error).__name__}"
                if waited >= _STARTUP_S:
                    await self.database.close()
                    raise NotReady(reason) from error
                _LOG.warning("%s", reason)
            await asyncio.sleep(1)
            waited += 1
