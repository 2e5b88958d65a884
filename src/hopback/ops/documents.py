"""Documents that are stored for each broker, such as notes, filters, answers, surveys and trends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from hopback.errors import BadRequest
from hopback.ops.contract.codec import encode, from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.clock import Clock
    from hopback.sql.database import SqlDatabase

_log = logging.getLogger("hopback.ops")
_T = TypeVar("_T")


class Documents:
    """Read and write the documents of a broker. They are identified by kind and key."""

    def __init__(self, database: SqlDatabase, broker: str, clock: Clock) -> None:
        self.broker = broker
        self.clock = clock
        self._database = database

    async def read(self, kind: str, shape: type[_T]) -> dict[str, _T]:
        """Return all documents of a kind by key. Documents of incompatible versions are skipped."""
        found: dict[str, _T] = {}
        for key, text in (await self._texts(kind)).items():
            try:
                found[key] = from_json(shape, text)
            except BadRequest:
                _log.warning("the stored %s of %r cannot be read", kind, key)
        return found

    async def keys(self, kind: str) -> frozenset[str]:
        return frozenset(await self._texts(kind))

    async def _texts(self, kind: str) -> dict[str, str]:
        statement = (
            "SELECT key, document FROM hopback_documents WHERE broker = :broker AND kind = :kind"
        )
        named = {"broker": self.broker, "kind": kind}
        return dict(await self._database.read(lambda execute: execute(statement, named)))

    async def write(self, kind: str, documents: Mapping[str, object]) -> None:
        """Add or replace documents."""
        now = self.clock.now()
        # Sort them to prevent a deadlock between two writers.
        rows: list[dict[str, object]] = [
            {
                "broker": self.broker,
                "kind": kind,
                "key": key,
                "now": now,
                "document": encode(documents[key]).decode(),
            }
            for key in sorted(documents)
        ]
        if rows:
            await self._database.write(
                lambda execute: execute(
                    "INSERT INTO hopback_documents (broker, kind, key, saved_at, document)"
                    " VALUES (:broker, :kind, :key, :now, :document)"
                    " ON CONFLICT (broker, kind, key)"
                    " DO UPDATE SET saved_at = excluded.saved_at, document = excluded.document",
                    rows,
                )
            )

    async def delete(self, kind: str, key: str) -> None:
        """Delete a document if it exists."""
        statement = (
            "DELETE FROM hopback_documents WHERE broker = :broker AND kind = :kind AND key = :key"
        )
        named = {"broker": self.broker, "kind": kind, "key": key}
        await self._database.write(lambda execute: execute(statement, named))
