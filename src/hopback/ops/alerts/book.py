"""The database tables for alerts, for the notices about them, and for the lease of the sending service."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hopback.errors import LeaseLost
from hopback.ops.alerts.values import Alert, AlertList, AlertNotice, AlertState, AlertTargetView
from hopback.ops.contract.codec import encode, from_json
from hopback.ops.contract.values import Moment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.ops.alerts.rules import AlertDecision
    from hopback.sql.database import Execute, Row, SqlDatabase

_ORDER = (AlertState.FIRING, AlertState.PENDING, AlertState.RESOLVED)


@dataclass(frozen=True, slots=True)
class WaitingNotice:
    """A notice that no target has accepted yet."""

    number: int
    notice: AlertNotice
    attempts: int


class AlertBook:
    """Read and write the tables of alerts.

    Several services can use the same database, but only the owner of the lease writes. The lease is
    checked in the same transaction as the change. LeaseLost is raised if another service has it.
    """

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def lead(self, owner: str, now: float, seconds: float) -> bool:
        """Take or renew the lease. Returns False if another service has it."""
        found = await self._write(
            "INSERT INTO hopback_leases (name, leased_by, leased_until)"
            " VALUES ('alerts', :owner, :until)"
            " ON CONFLICT (name) DO UPDATE"
            " SET leased_by = excluded.leased_by, leased_until = excluded.leased_until"
            " WHERE hopback_leases.leased_by = :owner OR hopback_leases.leased_until <= :now"
            " RETURNING name",
            {"owner": owner, "now": now, "until": now + seconds},
        )
        return bool(found)

    async def step_down(self, owner: str) -> None:
        """Release the lease, so that another service does not have to wait until it expires."""
        await self._write(
            "DELETE FROM hopback_leases WHERE name = 'alerts' AND leased_by = :owner",
            {"owner": owner},
        )

    async def alerts(self) -> tuple[Alert, ...]:
        rows = await self._read("SELECT document FROM hopback_alerts ORDER BY id", {})
        return tuple(from_json(Alert, document) for (document,) in rows)

    async def save(self, owner: str, now: float, decision: AlertDecision) -> None:
        """Store the changed alerts, delete those to forget, and add the notices."""
        await self._database.write(partial(_save, owner, now, decision))

    async def next_notices(self, now: float) -> tuple[WaitingNotice, ...]:
        """Return the oldest waiting notice of each target, if it is due."""
        rows = await self._read(
            "SELECT number, document, attempts FROM hopback_alert_notices"
            " WHERE due_at <= :now AND number IN (SELECT MIN(number) FROM hopback_alert_notices"
            " WHERE ended_at IS NULL GROUP BY target)",
            {"now": now},
        )
        return tuple(
            WaitingNotice(number, from_json(AlertNotice, document), attempts)
            for number, document, attempts in rows
        )

    async def end_notice(self, owner: str, number: int, now: float, error: str = "") -> None:
        """Record that the target accepted a notice, or that the service has given up because of an
        error.
        """
        await self._change_notice(
            owner, now, number, "ended_at = :now, error = :error", {"error": error or None}
        )

    async def retry_notice(
        self, owner: str, number: int, now: float, due_at: float, error: str
    ) -> None:
        """Record a failed attempt and the time of the next one."""
        values = {"due_at": due_at, "error": error}
        changes = "attempts = attempts + 1, due_at = :due_at, error = :error"
        await self._change_notice(owner, now, number, changes, values)

    async def forget(self, before: float) -> None:
        """Delete notices that were completed before a certain time."""
        await self._write(
            "DELETE FROM hopback_alert_notices WHERE ended_at < :before", {"before": before}
        )

    async def list_alerts(self, kinds: Mapping[str, str] | None = None) -> AlertList:
        """Return the alerts, firing and newest first, and the targets.

        `kinds` maps the targets in the settings to their kinds. If it is None, the targets of all
        notices are returned.
        """
        found = sorted(
            await self.alerts(),
            key=lambda one: (
                _ORDER.index(one.state),
                -(one.resolved_at or one.fired_at or one.since),
            ),
        )
        known = await self._targets()
        targets = tuple(
            AlertTargetView(name, (kinds or {}).get(name, ""), *known.get(name, ()))
            for name in (known if kinds is None else kinds)
        )
        return AlertList(tuple(found), len(found), targets=targets)

    async def _targets(self) -> dict[str, tuple[int, Moment | None, str]]:
        """Return the number of waiting notices, the time of the last delivery and the error since
        then, by target.
        """
        rows = await self._read(
            "SELECT one.target, one.waiting, one.sent_at, failed.error, failed.ended_at FROM ("
            " SELECT target, COUNT(CASE WHEN ended_at IS NULL THEN 1 END) AS waiting,"
            " MAX(CASE WHEN error IS NULL THEN ended_at END) AS sent_at,"
            " MAX(CASE WHEN error IS NOT NULL THEN number END) AS failed"
            " FROM hopback_alert_notices GROUP BY target"
            ") AS one LEFT JOIN hopback_alert_notices AS failed ON failed.number = one.failed",
            {},
        )
        found = {}
        for target, waiting, sent_at, error, ended_at in rows:
            is_over = sent_at is not None and ended_at is not None and ended_at < sent_at
            found[target] = waiting, Moment.known(sent_at), "" if is_over else error or ""
        return found

    async def _change_notice(
        self, owner: str, now: float, number: int, changes: str, values: Mapping[str, object]
    ) -> None:
        def change(execute: Execute) -> None:
            _check_lease(execute, owner, now)
            execute(
                f"UPDATE hopback_alert_notices SET {changes} WHERE number = :number",
                {"number": number, "now": now, **values},
            )

        await self._database.write(change)

    async def _read(self, statement: str, values: Mapping[str, object]) -> list[Row]:
        return await self._database.read(lambda execute: execute(statement, values))

    async def _write(self, statement: str, values: Mapping[str, object]) -> list[Row]:
        return await self._database.write(lambda execute: execute(statement, values))


def _check_lease(execute: Execute, owner: str, now: float) -> None:
    """Raise LeaseLost unless the owner has the lease. The update locks the row until the commit."""
    found = execute(
        "UPDATE hopback_leases SET leased_by = leased_by WHERE name = 'alerts'"
        " AND leased_by = :owner AND leased_until > :now RETURNING name",
        {"owner": owner, "now": now},
    )
    if not found:
        raise LeaseLost("another service sends the alerts now")


def _save(owner: str, now: float, decision: AlertDecision, execute: Execute) -> None:
    _check_lease(execute, owner, now)
    if decision.forgotten:
        execute(
            "DELETE FROM hopback_alerts WHERE id = :id",
            [{"id": each} for each in decision.forgotten],
        )
    if decision.changed:
        execute(
            "INSERT INTO hopback_alerts (id, document) VALUES (:id, :document)"
            " ON CONFLICT (id) DO UPDATE SET document = excluded.document",
            [{"id": one.id, "document": encode(one).decode()} for one in decision.changed],
        )
    if decision.notices:
        execute(
            "INSERT INTO hopback_alert_notices (target, document, due_at)"
            " VALUES (:target, :document, :due_at)",
            [
                {"target": one.target, "document": encode(one).decode(), "due_at": now}
                for one in decision.notices
            ],
        )
