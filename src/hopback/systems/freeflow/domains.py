"""What an event does, domain by domain.

A handler changes its read model within the transaction that also marks the event as processed. What it
raises rolls both back, and says what becomes of the event: hopeless, or try again, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import (
    Boolean,
    Column,
    Double,
    Integer,
    MetaData,
    Table,
    Text,
    insert,
    select,
    update,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hopback import Context
    from hopback.store import Transaction

METADATA = MetaData()

users: Table = Table(
    "freeflow_users",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("logins", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
)

alarms: Table = Table(
    "freeflow_alarms",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("text", Text, nullable=False),
    Column("cleared", Boolean, nullable=False),
)

documents: Table = Table(
    "freeflow_documents",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("words", Integer, nullable=False),
    Column("archived", Boolean, nullable=False),
)

workflows: Table = Table(
    "freeflow_workflows",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("done", Integer, nullable=False),
)

notifications: Table = Table(
    "freeflow_notifications",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("recipient", Text, nullable=False),
    Column("text", Text, nullable=False),
)

audit: Table = Table(
    "freeflow_audit",
    METADATA,
    Column("message_id", Text, primary_key=True),
    Column("routing_key", Text, nullable=False),
    Column("arrivals", Integer, nullable=False),
    Column("last_at", Double, nullable=False),
)
"""What the audit's queue received, and how often: of its own domain, or of all where it is bound to `#`. Then
a retry of any domain arrives again, in the documented form."""

VIEWS = {
    "users": users,
    "alarms": alarms,
    "documents": documents,
    "workflows": workflows,
    "notifications": notifications,
    "audit": audit,
}
"""The tables that can be looked at over HTTP."""


EXCHANGE = "freeflow.events"
_MOST_FAILURES = 3
"""So many failed logins in a row raise an alarm."""
_BUSY = "busy@"
"""Mailboxes of this name take nothing, and ask for five minutes."""


class Hopeless(ValueError):
    """A non-recoverable event: it goes to the dead-letter queue at once."""


class MissingYet(Exception):
    """Something is missing that may be there later; `after` asks for a wait of so many seconds."""

    def __init__(self, what: str, after: float | None = None) -> None:
        self.after = after
        super().__init__(what)


@dataclass(frozen=True, slots=True)
class DomainEvent:
    """An event in its transaction: `what` is the second word of its routing key."""

    what: str
    data: Mapping[str, Any]
    tx: Transaction
    context: Context

    def unknown(self, *known: str) -> Hopeless:
        """The error for an event that its domain does not have: parked, where somebody sees it."""
        key = self.context.routing_key
        return Hopeless(f"{key}: expected the event to be one of {', '.join(known)}")

    def text(self, name: str) -> str:
        """A field that has to be there; Hopeless without it."""
        found = self.data.get(name)
        if not isinstance(found, str) or not found.strip():
            raise Hopeless(f"{name}: expected text")
        return found

    async def row(self, table: Table, row_id: str) -> Mapping[str, Any] | None:
        """A row of a read model, by id; nobody else changes it meanwhile."""
        found = await self.tx.execute(select(table).where(table.c.id == row_id).with_for_update())
        row = found.mappings().first()
        return None if row is None else dict(row)

    async def change(self, table: Table, row_id: str, **values: object) -> None:
        """Change a row of a read model."""
        await self.tx.execute(update(table).where(table.c.id == row_id).values(**values))

    async def emit(self, routing_key: str, data: Mapping[str, Any]) -> None:
        """Publish what this event leads to. An event with an id gives an id that a second run repeats."""
        own = self.context.delivery.properties.message_id
        message_id = None if own is None else f"{own}/{routing_key}"
        await self.context.publish(
            routing_key, dict(data), exchange=EXCHANGE, message_id=message_id
        )


async def _user(event: DomainEvent) -> None:
    """`user.registered`."""
    if event.what != "registered":
        raise event.unknown("registered")
    if await event.row(users, event.text("id")) is None:
        row = {"id": event.text("id"), "name": event.text("name"), "logins": 0, "failures": 0}
        await event.tx.execute(insert(users).values(row))


async def _auth(event: DomainEvent) -> None:
    """`auth.succeeded`, `auth.failed`: may overtake the registration, then it is tried again."""
    if event.what not in ("succeeded", "failed"):
        raise event.unknown("succeeded", "failed")
    user = await event.row(users, event.text("user"))
    if user is None:
        raise MissingYet("the user is not registered yet")
    if event.what == "succeeded":
        await event.change(users, user["id"], logins=user["logins"] + 1, failures=0)
        return
    failures = user["failures"] + 1
    await event.change(users, user["id"], failures=failures)
    if failures == _MOST_FAILURES:
        text = f"{failures} failed logins of {user['name']}"
        await event.emit("alarm.raised", {"id": f"login-{user['id']}", "text": text})


async def _alarm(event: DomainEvent) -> None:
    """`alarm.raised`, `alarm.cleared`."""
    if event.what not in ("raised", "cleared"):
        raise event.unknown("raised", "cleared")
    alarm = await event.row(alarms, event.text("id"))
    if event.what == "raised" and alarm is None:
        row = {"id": event.text("id"), "text": event.text("text"), "cleared": False}
        await event.tx.execute(insert(alarms).values(row))
    elif event.what == "cleared":
        if alarm is None:
            raise MissingYet("the alarm is not raised yet")
        await event.change(alarms, alarm["id"], cleared=True)


async def _document(event: DomainEvent) -> None:
    """`document.created`, `document.archived`."""
    if event.what not in ("created", "archived"):
        raise event.unknown("created", "archived")
    document = await event.row(documents, event.text("id"))
    if event.what == "created" and document is None:
        words = len(str(event.data.get("text", "")).split())
        row = {"id": event.text("id"), "title": event.text("title"), "words": words}
        await event.tx.execute(insert(documents).values(row | {"archived": False}))
    elif event.what == "archived":
        if document is None:
            raise MissingYet("the document is not created yet")
        await event.change(documents, document["id"], archived=True)


async def _workflow(event: DomainEvent) -> None:
    """`workflow.started`, `workflow.advanced`: the last step notifies the owner."""
    if event.what not in ("started", "advanced"):
        raise event.unknown("started", "advanced")
    workflow = await event.row(workflows, event.text("id"))
    if event.what == "started" and workflow is None:
        steps = event.data.get("steps")
        if not isinstance(steps, int) or not 1 <= steps <= 100:
            raise Hopeless("steps: expected 1 to 100")
        row = {"id": event.text("id"), "owner": event.text("owner"), "steps": steps, "done": 0}
        await event.tx.execute(insert(workflows).values(row))
    elif event.what == "advanced":
        if workflow is None:
            raise MissingYet("the workflow is not started yet")
        await event.change(workflows, workflow["id"], done=workflow["done"] + 1)
        if workflow["done"] + 1 == workflow["steps"]:
            note = {"to": workflow["owner"], "text": f"workflow {workflow['id']} is done"}
            await event.emit("notification.requested", note)


async def _notification(event: DomainEvent) -> None:
    """`notification.requested`: the mailbox decides how long it wants to be left alone."""
    if event.what != "requested":
        raise event.unknown("requested")
    recipient = event.text("to")
    if "@" not in recipient:
        raise Hopeless(f"nobody can be reached as {recipient[:100]!r}")
    if recipient.startswith(_BUSY):
        raise MissingYet("the mailbox is busy", after=300)
    row = {"id": event.context.message_id, "recipient": recipient, "text": event.text("text")}
    await event.tx.execute(insert(notifications).values(row))


Handle: TypeAlias = "Callable[[DomainEvent], Awaitable[None]]"

DOMAINS: Mapping[str, Handle] = {
    "user": _user,
    "auth": _auth,
    "alarm": _alarm,
    "document": _document,
    "workflow": _workflow,
    "notification": _notification,
}
"""A handler for each domain; the seventh, audit, notes what it gets (`consumers.py`)."""
