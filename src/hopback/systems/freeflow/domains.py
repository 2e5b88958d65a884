"""The effects of events, by domain.

A handler changes its read model and sends further events in the transaction that also marks the event as
processed. An exception rolls all of it back. Its type decides between parking and a retry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

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

from hopback import Context, compose
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
"""The events of the audit's queue and the number of their arrivals. A queue that is bound to `#` receives the
events of all domains, and in the documented form also their retries."""

VIEWS = {
    "users": users,
    "alarms": alarms,
    "documents": documents,
    "workflows": workflows,
    "notifications": notifications,
    "audit": audit,
}
"""The tables that the HTTP side shows."""


EXCHANGE = "freeflow.events"
_MOST_FAILURES = 3
"""Number of failed logins in a row that raise an alarm."""
_BUSY = "busy@"
"""Prefix of mailboxes that accept no message and ask for a retry after five minutes."""


class Hopeless(ValueError):
    """A non-recoverable event. It is parked in the dead-letter queue at once."""


class MissingYet(Exception):
    """A row is missing that may exist later. `after` requests a wait, in seconds."""

    def __init__(self, what: str, after: float | None = None) -> None:
        self.after = after
        super().__init__(what)


@dataclass(frozen=True, slots=True)
class DomainEvent:
    """An event in its transaction. `what` is the second word of its routing key."""

    what: str
    data: Mapping[str, Any]
    tx: Transaction
    context: Context

    def unknown(self, *known: str) -> Hopeless:
        """Return the error for an event that its domain does not have. It is parked."""
        key = self.context.routing_key
        return Hopeless(f"{key}: expected the event to be one of {', '.join(known)}")

    def text(self, name: str) -> str:
        """Return a required text field. Raises Hopeless without it."""
        found = self.data.get(name)
        if not isinstance(found, str) or not found.strip():
            raise Hopeless(f"{name}: expected text")
        return found

    async def row(self, table: Table, row_id: str) -> Mapping[str, Any] | None:
        """Return a row of a read model by id, or None. The row is locked until the commit."""
        found = await self.tx.execute(select(table).where(table.c.id == row_id).with_for_update())
        row = found.mappings().first()
        return None if row is None else dict(row)

    async def change(self, table: Table, row_id: str, **values: object) -> None:
        """Change a row of a read model."""
        await self.tx.execute(update(table).where(table.c.id == row_id).values(**values))

    async def send(self, routing_key: str, data: Mapping[str, Any]) -> None:
        """Send a further event through the outbox: it is published after the commit, or not at all."""
        await self.tx.send(compose(routing_key, dict(data), exchange=EXCHANGE))


async def _user(event: DomainEvent) -> None:
    """`user.registered`."""
    if event.what != "registered":
        raise event.unknown("registered")
    if await event.row(users, event.text("id")) is None:
        row = {"id": event.text("id"), "name": event.text("name"), "logins": 0, "failures": 0}
        await event.tx.execute(insert(users).values(row))


async def _auth(event: DomainEvent) -> None:
    """`auth.succeeded`, `auth.failed`. A login before the registration is retried."""
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
        await event.send("alarm.raised", {"id": f"login-{user['id']}", "text": text})


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
    """`workflow.started`, `workflow.advanced`. The last step notifies the owner."""
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
            await event.send("notification.requested", note)


async def _notification(event: DomainEvent) -> None:
    """`notification.requested`. A busy mailbox requests a longer wait."""
    if event.what != "requested":
        raise event.unknown("requested")
    recipient = event.text("to")
    if "@" not in recipient:
        raise Hopeless(f"to: expected an address with @, got {recipient[:100]!r}")
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
"""The handlers by domain. The seventh domain, audit, has its handler in `consumers.py`."""
