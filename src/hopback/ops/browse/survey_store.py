"""The journal's part for surveys: documents of one broker, and the jobs on its queues."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from hopback.errors import BadRequest
from hopback.ops.contract.codec import encode, from_json
from hopback.ops.contract.requests import JobKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from msgspec import Struct

    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.jobs.journal import Journal

_log = logging.getLogger("hopback.ops")
_T = TypeVar("_T")


class SurveyStore:
    """Reads and writes documents by kind and key."""

    def __init__(self, journal: Journal, broker: ManagedBroker) -> None:
        self._journal = journal
        self._broker = broker.journal_name
        self.clock = broker.clock

    async def read(self, kind: str, shape: type[_T]) -> dict[str, _T]:
        """Return the documents of a kind by key. A document of another version is left out."""
        found: dict[str, _T] = {}
        for key, text in (await self._journal.remembered(self._broker, kind)).items():
            try:
                found[key] = from_json(shape, text)
            except BadRequest:
                _log.warning("the stored %s of %r cannot be read", kind, key)
        return found

    async def write(self, kind: str, documents: Mapping[str, Struct]) -> None:
        """Add or replace documents."""
        texts = {key: encode(document).decode() for key, document in documents.items()}
        await self._journal.remember(self._broker, kind, texts, self.clock.now())

    async def delete(self, kind: str, key: str) -> None:
        """Delete a document."""
        await self._journal.unlearn(self._broker, kind, key)

    async def has_active_job(self, queue: str) -> bool:
        """Return whether a job works on the queue."""
        return bool(await self._journal.jobs(broker=self._broker, queue=queue, active=True))

    async def is_discard(self, job_id: str) -> bool:
        """Return whether the job is a discard of this broker."""
        job = await self._journal.job(job_id)
        return job is not None and job.kind is JobKind.DISCARD and job.spec.broker == self._broker
