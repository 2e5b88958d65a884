"""The resources that every part uses: the database with inbox and outbox, and the storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hopback import App
from hopback.errors import StoreUnavailable
from hopback.runtime import Clock
from hopback.store import Database
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.storage import open_storage
from hopback.systems.file_pipeline.tables import METADATA
from hopback.systems.settings import SettingsError

if TYPE_CHECKING:  # only the gateway loads the web framework
    from hopback.systems.web import TopologyPublisher


class PartRuntime:
    """The resources of one process. They can be used inside of `open`.

    If `relays` is False, the process does not publish messages from the outbox.
    """

    def __init__(
        self, settings: PipelineSettings, clock: Clock | None = None, *, relays: bool = True
    ) -> None:
        self.settings = settings
        self.storage = open_storage(settings)
        self.database = Database(settings.database_url, tables=METADATA, clock=clock, relays=relays)
        self.clock = self.database.clock
        self.background: list[Callable[[], Awaitable[None]]] = []
        """Functions that run while the runtime is open."""

    @asynccontextmanager
    async def open(self, sender: App | TopologyPublisher) -> AsyncIterator[None]:
        """Prepare the storage, and publish messages from the outbox until the block ends."""
        try:
            await asyncio.to_thread(self.storage.prepare, self.clock.now())
        except OSError as error:
            raise SettingsError(f"FILES_FOLDER or FILES_STORAGE: {error}") from error
        async with self.database.lifespan(sender):
            # Without its database, a part would park every message after three attempts.
            if reason := await self.database.check():
                raise StoreUnavailable(reason)
            tasks = [asyncio.ensure_future(work()) for work in self.background]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
