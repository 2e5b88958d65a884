"""The relay's side of the outbox: lease slots, read what is due, take away what was confirmed.

The properties of a message are kept as JSON and are equal in value and type when they are read back.
"""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, exists, func, select, update

from hopback import fields as amqp
from hopback.clock import SystemClock
from hopback.headers import without_unread
from hopback.headers.names import DELAY
from hopback.headers.typed_json import properties_from_json, properties_to_json
from hopback.message import Message, Properties
from hopback.policy.delays import delay_until_due
from hopback.store.database import outbox, outbox_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.clock import Clock


__all__ = ["Outbox", "Pending", "read_properties", "write_properties"]


# How an earlier version wrote a value that JSON has no type for: `{"$Int8": 1}`. Such rows may still wait.
_TAGGED: dict[str, Callable[[Any], Any]] = {
    "$table": lambda said: {name: _tagged(inner) for name, inner in said.items()},
    "$Decimal": Decimal,
    "$bytes": b64decode,
    "$LongStr": lambda said: amqp.LongStr(b64decode(said)),
    "$RawValue": lambda said: amqp.RawValue(b64decode(said)),
    **{
        f"${kind.__name__}": kind
        for kind in (
            amqp.Int8, amqp.UInt8, amqp.Int16, amqp.UInt16, amqp.Int32, amqp.UInt32, amqp.UInt64,
            amqp.Float32, amqp.Timestamp,
        )
    },
}  # fmt: skip


def write_properties(properties: Properties) -> str:
    """The properties that are set, as JSON; what of headers nobody could read, as bytes of ours."""
    return json.dumps(properties_to_json(without_unread(properties)), separators=(",", ":"))


def read_properties(text: str) -> Properties:
    """The properties that `write_properties` wrote, in this version or an earlier one."""
    record = json.loads(text)
    if "properties" in record:
        return properties_from_json(record)
    found = {name: _tagged(value) for name, value in record.items()}
    if "further_headers" in found:
        found["further_headers"] = tuple(map(tuple, found["further_headers"]))
    return Properties(**found)


def _tagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_tagged(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    ((tag, said),) = value.items()
    return _TAGGED[tag](said)


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
        self, engine: AsyncEngine, owner: str, clock: Clock | None = None, *, lease: float = 30.0
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._clock = clock or SystemClock()
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
        found = []
        for row in rows:
            properties = read_properties(row.properties)
            message = Message(row.exchange, row.routing_key, bytes(row.body), properties)
            if DELAY in properties.headers:  # only the rest of its wait
                message = delay_until_due(message, self._clock.now())
            found.append(Pending(row.id, row.key, message, row.failures))
        return found

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
