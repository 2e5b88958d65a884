"""Jobs in SQL, as rows: their documents are the business of whoever writes them.

A row that is active belongs to the owner of its lease. A lease that has run out makes the job read as
not held; the next to begin a job for the same queue puts it aside first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from hopback.store.database import reading, store_errors, writing
from hopback.store.schema import job_failures, jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from sqlalchemy import Row, Select
    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.clock import Clock

__all__ = ["JobRow", "JobTable", "RowTaken"]

_ACTIVE = ("running", "paused")
_FINISHED = ("completed", "cancelled")  # the others can be resumed, so somebody may need them


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job. `is_held` says whether its lease still runs."""

    id: str
    place: str
    queue: str
    state: str
    key: str | None
    document: str
    wish: str = "{}"
    is_held: bool = True


class RowTaken(Exception):
    """Another job is active for the same queue, or has the same key; `row` is that one."""

    def __init__(self, row: JobRow) -> None:
        self.row = row
        super().__init__(f"job {row.id} is {row.state}")


class JobTable:
    """The jobs and what they could not do."""

    def __init__(self, engine: AsyncEngine, clock: Clock, *, lease: float = 30.0) -> None:
        self._engine = engine
        self._clock = clock
        self._lease = lease

    async def begin(self, row: JobRow, owner: str) -> None:
        """Write it down, or lease it again, for `owner`; RowTaken if another stands in the way."""
        with store_errors():
            try:
                await self._begin(row, owner)
            except IntegrityError:
                # Somebody was quicker: two processes began at the same moment.
                other = await self._in_the_way(row)
                if other is None:
                    raise
                raise RowTaken(other) from None

    async def _begin(self, row: JobRow, owner: str) -> None:
        now = self._clock.now()
        values = {
            "place": row.place,
            "queue": row.queue,
            "state": row.state,
            "key": row.key,
            "document": row.document,
            "wish": row.wish,
            "leased_by": owner,
            "leased_until": now + self._lease,
            "ended_at": None,
        }
        async with self._engine.begin() as connection:
            await connection.execute(
                update(jobs)
                .where(
                    jobs.c.place == row.place,
                    jobs.c.queue == row.queue,
                    jobs.c.state.in_(_ACTIVE),
                    jobs.c.leased_until < now,
                    jobs.c.id != row.id,
                )
                .values(state="interrupted", leased_by=None)
            )
            again = await connection.execute(
                update(jobs)
                .where(jobs.c.id == row.id, _is_free(now))
                .values(values)
                .returning(jobs.c.id)
            )
            if again.first() is None:
                await connection.execute(insert(jobs).values(id=row.id, **values))

    async def _in_the_way(self, row: JobRow) -> JobRow | None:
        same = (jobs.c.id == row.id) | (
            (jobs.c.place == row.place)
            & (
                ((jobs.c.queue == row.queue) & jobs.c.state.in_(_ACTIVE))
                | ((jobs.c.key == row.key) if row.key is not None else (jobs.c.id == row.id))
            )
        )
        found = await self._rows(select(jobs).where(same).limit(1))
        return next(iter(found), None)

    async def save(self, row: JobRow, owner: str) -> bool:
        """Write state and document; False if somebody else has the lease now."""
        ended = {} if row.state in _ACTIVE else {"leased_by": None, "leased_until": 0.0}
        changed = await self._change(
            (jobs.c.id == row.id, jobs.c.leased_by == owner),
            {
                "state": row.state,
                "document": row.document,
                "ended_at": self._clock.now() if row.state in _FINISHED else None,
                **ended,
            },
        )
        return changed is not None

    async def amend(self, row: JobRow) -> bool:
        """Write to a job that nobody holds; False if somebody does."""
        changed = await self._change(
            (jobs.c.id == row.id, _is_free(self._clock.now())),
            {"state": row.state, "document": row.document},
        )
        return changed is not None

    async def renew(self, ident: str, owner: str) -> str | None:
        """Prolong the lease; what is wished, or None if somebody else has it now."""
        return await self._change(
            (jobs.c.id == ident, jobs.c.leased_by == owner),
            {"leased_until": self._clock.now() + self._lease},
        )

    async def wish(self, ident: str, wish: str) -> None:
        """Write down what is wanted of a job."""
        await self._change((jobs.c.id == ident,), {"wish": wish})

    async def _change(self, where: Sequence[Any], values: dict[str, Any]) -> str | None:
        """Change the row; its wish, or None if there is no such row."""
        statement = update(jobs).where(*where).values(values).returning(jobs.c.wish)
        async with writing(self._engine) as connection:
            found = (await connection.execute(statement)).first()
        return None if found is None else str(found.wish)

    async def get(self, ident: str) -> JobRow | None:
        """One job, or None."""
        return next(iter(await self._rows(select(jobs).where(jobs.c.id == ident))), None)

    async def keyed(self, place: str, key: str) -> JobRow | None:
        """The job of that key, or None."""
        query = select(jobs).where(jobs.c.place == place, jobs.c.key == key)
        return next(iter(await self._rows(query)), None)

    async def newest(self, *, place: str, queue: str, active: bool, limit: int) -> list[JobRow]:
        """Jobs, the newest first; empty names mean any."""
        query = select(jobs).order_by(jobs.c.number.desc()).limit(limit)
        if place:
            query = query.where(jobs.c.place == place)
        if queue:
            query = query.where(jobs.c.queue == queue)
        if active:
            query = query.where(jobs.c.state.in_(_ACTIVE), jobs.c.leased_until >= self._clock.now())
        return await self._rows(query)

    async def _rows(self, query: Select[Any]) -> list[JobRow]:
        now = self._clock.now()
        async with reading(self._engine) as connection:
            return [_row(found, now) for found in await connection.execute(query)]

    async def delete(self, before: float, limit: int) -> tuple[int, int]:
        """Delete at most `limit` rows of jobs that were over before then; how many jobs, and rows."""
        over = jobs.c.state.in_(_FINISHED)
        old = select(jobs.c.id).where(over, jobs.c.ended_at < before).order_by(jobs.c.number)
        async with writing(self._engine) as connection:
            # Jobs of an older Hopback do not say when they ended: their time begins now.
            await connection.execute(
                update(jobs)
                .where(over, jobs.c.ended_at.is_(None))
                .values(ended_at=self._clock.now())
            )
            ids = list((await connection.execute(old.limit(limit))).scalars())
            failures = select(job_failures.c.number).where(job_failures.c.job.in_(ids))
            numbers = list((await connection.execute(failures.limit(limit))).scalars())
            if numbers:  # a job may have more of them than fit: the job itself goes last
                await connection.execute(
                    delete(job_failures).where(job_failures.c.number.in_(numbers))
                )
                return 0, len(numbers)
            await connection.execute(delete(jobs).where(jobs.c.id.in_(ids)))
        return len(ids), len(ids)

    async def add_failures(self, ident: str, documents: Iterable[str]) -> None:
        """Append what a job could not do."""
        rows = [{"job": ident, "document": document} for document in documents]
        if rows:
            async with writing(self._engine) as connection:
                await connection.execute(insert(job_failures), rows)

    async def failures(self, ident: str, offset: int, limit: int) -> list[str]:
        """What a job could not do, in order."""
        query = (
            select(job_failures.c.document)
            .where(job_failures.c.job == ident)
            .order_by(job_failures.c.number)
            .offset(offset)
            .limit(limit)
        )
        async with reading(self._engine) as connection:
            return list((await connection.execute(query)).scalars())


def _is_free(now: float) -> Any:
    """Nobody runs it: it is not active, or its lease has run out."""
    return jobs.c.state.not_in(_ACTIVE) | (jobs.c.leased_until < now)


def _row(found: Row[Any], now: float) -> JobRow:
    return JobRow(
        found.id,
        found.place,
        found.queue,
        found.state,
        found.key,
        found.document,
        found.wish,
        found.leased_until >= now,
    )
