"""The keys of the admin service in SQL: documents by id; what is in them is the service's business."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select

from hopback.store.database import reading, writing
from hopback.store.schema import api_keys

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["KeyTable"]


class KeyTable:
    """The keys."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def all(self) -> dict[str, str]:
        """Every document, by the id of its key."""
        async with reading(self._engine) as connection:
            rows = await connection.execute(select(api_keys).order_by(api_keys.c.id))
            return {row.id: row.document for row in rows}

    async def add(self, key_id: str, document: str) -> None:
        """Keep a document."""
        async with writing(self._engine) as connection:
            await connection.execute(insert(api_keys).values(id=key_id, document=document))

    async def remove(self, key_id: str) -> None:
        """Forget a document; none there is no error."""
        async with writing(self._engine) as connection:
            await connection.execute(delete(api_keys).where(api_keys.c.id == key_id))
