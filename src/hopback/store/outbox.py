"""The relay's side of the outbox: lease slots, read what is due, take away what was confirmed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, delete, exists, func, select, update

from hopback.message import Message
from hopback.store.document import read_properties
from hopback.store.schema import outbox, outbox_slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.clock import Clock

__all__ = ["Outbox", "Pending"]


@dataclass(frozen=True, slots=True)
class Pending:
    """A message that waits to be published; `key` orders it among its like."""

    id: int
    key: str | None
    message: Message
    failures: int


class Outbox:
    """The outbox as one relay sees it; several relays share it through leases on slots."""

    def __init__(
        self, engine: AsyncEngine, owner: str, clock: Clock, *, lease: float = 30.0
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._clock = clock
        self.lease = lease

    async def claim(self, most_slots: int = 16) -> list[int]:
        """Lease slots that hold messages and that nobody else has leased; [] if there are none."""
        now = self._clock.now()
        slots = outbox_slots.c
        free = (
            select(slots.slot)
            .where(slots.leased_until <= now, exists().where(outbox.c.slot == slots.slot))
            .order_by(slots.leased_until)  # those that have waited longest: no slot is passed over
            .limit(most_slots)
            .with_for_update(skip_locked=True)  # PostgreSQL: pass by what another relay is claiming
        )
        async with self._engine.begin() as connection:
            claimed = list((await connection.execute(free)).scalars())
            if claimed:
                await connection.execute(
                    update(outbox_slots)
                    .where(slots.slot.in_(claimed))
                    .values(leased_by=self._owner, leased_until=now + self.lease)
                )
        return claimed

    async def renew(self, claimed: Sequence[int]) -> bool:
        """Prolong the lease; False if any of it was lost meanwhile: then publish nothing more."""
        slots = outbox_slots.c
        mine = (slots.slot.in_(claimed), slots.leased_by == self._owner)
        async with self._engine.begin() as connection:
            result = await connection.execute(
                update(outbox_slots)
                .where(*mine)
                .values(leased_until=self._clock.now() + self.lease)
            )
        return result.rowcount == len(claimed)

    async def release(self, claimed: Sequence[int]) -> None:
        """Give the slots back before their lease ends."""
        slots = outbox_slots.c
        mine = (slots.slot.in_(claimed), slots.leased_by == self._owner)
        async with self._engine.begin() as connection:
            await connection.execute(
                update(outbox_slots)
                .where(*mine)
                .values(leased_by=None, leased_until=self._clock.now())
            )

    async def pending(self, claimed: Sequence[int], most: int, *, after: int = 0) -> list[Pending]:
        """The oldest messages of the claimed slots, in order; those after an id, page by page."""
        columns = outbox.c
        wanted = (columns.slot.in_(claimed), columns.id > after)
        query = select(outbox).where(*wanted).order_by(columns.id).limit(most)
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).all()
        return [
            Pending(
                row.id,
                row.key,
                Message(
                    row.exchange, row.routing_key, bytes(row.body), read_properties(row.properties)
                ),
                row.failures,
            )
            for row in rows
        ]

    async def settle(self, published: Sequence[int], failed: Mapping[int, str]) -> None:
        """Take away what the broker has confirmed and note why the rest was not published."""
        async with self._engine.begin() as connection:
            if published:
                await connection.execute(delete(outbox).where(outbox.c.id.in_(published)))
            if failed:
                await connection.execute(
                    update(outbox)
                    .where(outbox.c.id == bindparam("message"))
                    .values(failures=outbox.c.failures + 1, error=bindparam("why")),
                    [{"message": id_, "why": why[:500]} for id_, why in failed.items()],
                )

    async def depth(self) -> int:
        """How many messages wait."""
        async with self._engine.connect() as connection:
            return (await connection.execute(select(func.count()).select_from(outbox))).scalar_one()
