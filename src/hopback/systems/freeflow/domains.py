"""The read models and the handlers that update them.

A handler updates its read model and sends further events in one transaction. The same transaction
marks the event as processed. If the handler raises an exception, everything is rolled back, and the
type of the exception decides if the event is parked or retried.
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
    RowMapping,
    Table,
    Text,
    select,
    update,
)

from hopback import Context, compose
from hopback.store import Transaction

EXCHANGE = "freeflow.events"
_MOST_FAILURES = 3
"""The number of consecutive failed logins that raise an alarm."""
_BUSY = "busy@"
"""The prefix of mailboxes that are busy and ask for a retry after five minutes."""

METADATA = MetaData()


def _view(view: str, /, **columns: type[Any]) -> Table:
    key: Column[str] = Column("id", Text, primary_key=True)
    others = [Column(name, kind, nullable=False) for name, kind in columns.items()]
    return Table(f"freeflow_{view}", METADATA, key, *others)


users = _view("users", name=Text, logins=Integer, failures=Integer)
alarms = _view("alarms", text=Text, cleared=Boolean)
documents = _view("documents", title=Text, words=Integer, archived=Boolean)
workflows = _view("workflows", owner=Text, steps=Integer, done=Integer)
notifications = _view("notifications", recipient=Text, text=Text)
audit: Table = Table(
    "freeflow_audit",
    METADATA,
    Column("message_id", Text, primary_key=True),
    Column("routing_key", Text, nullable=False),
    Column("arrivals", Integer, nullable=False),
    Column("last_at", Double, nullable=False),
)
"""The events that the audit has received and how often each of them has arrived. If the queue is
bound to `#`, it receives the events of all domains. In the documented form it also receives their
retries.
"""

VIEWS = {name.removeprefix("freeflow_"): table for name, table in METADATA.tables.items()}
"""The tables that the HTTP API shows."""


class Hopeless(ValueError):
    """The event can never be processed. It is parked in the dead-letter queue immediately."""


class MissingYet(Exception):
    """A row does not exist yet. `after` is the requested delay in seconds."""

    def __init__(self, what: str, after: float | None = None) -> None:
        self.after = after
        super().__init__(what)


@dataclass(frozen=True, slots=True)
class DomainEvent:
    """An event and the transaction in which it is handled."""

    data: Mapping[str, Any]
    tx: Transaction
    context: Context

    def text(self, name: str) -> str:
        """Return a text field. Raises Hopeless if it is missing."""
        found = self.data.get(name)
        if not isinstance(found, str) or not found.strip():
            raise Hopeless(f"{name}: expected text")
        return found

    async def row(self, table: Table, row_id: str, missing: str) -> RowMapping:
        """Return a row and lock it until the commit. Raises MissingYet if it does not exist."""
        found = await self.tx.execute(select(table).where(table.c.id == row_id).with_for_update())
        row = found.mappings().first()
        if row is None:
            raise MissingYet(missing)
        return row

    async def add(self, table: Table, row_id: str, **values: object) -> None:
        """Insert a row unless it already exists."""
        await self.tx.execute(
            self.tx.insert(table).values(id=row_id, **values).on_conflict_do_nothing()
        )

    async def change(self, table: Table, row_id: str, **values: object) -> None:
        await self.tx.execute(update(table).where(table.c.id == row_id).values(**values))

    async def send(self, routing_key: str, data: Mapping[str, Any]) -> None:
        """Send another event through the outbox. It is only published if the transaction commits."""
        await self.tx.send(compose(routing_key, dict(data), exchange=EXCHANGE))


Handle: TypeAlias = Callable[[DomainEvent], Awaitable[None]]

HANDLERS: dict[str, Handle] = {}
"""The handlers by routing key. The handler of the audit is in `consumers.py`."""


def _on(routing_key: str) -> Callable[[Handle], Handle]:
    def register(handle: Handle) -> Handle:
        HANDLERS[routing_key] = handle
        return handle

    return register


@_on("user.registered")
async def _register(event: DomainEvent) -> None:
    await event.add(users, event.text("id"), name=event.text("name"), logins=0, failures=0)


@_on("auth.succeeded")
async def _count_login(event: DomainEvent) -> None:
    user = await event.row(users, event.text("user"), "the user is not registered yet")
    await event.change(users, user["id"], logins=user["logins"] + 1, failures=0)


@_on("auth.failed")
async def _count_failure(event: DomainEvent) -> None:
    """Raise an alarm after the third consecutive failure."""
    user = await event.row(users, event.text("user"), "the user is not registered yet")
    failures = user["failures"] + 1
    await event.change(users, user["id"], failures=failures)
    if failures == _MOST_FAILURES:
        text = f"{failures} failed logins of {user['name']}"
        await event.send("alarm.raised", {"id": f"login-{user['id']}", "text": text})


@_on("alarm.raised")
async def _raise_alarm(event: DomainEvent) -> None:
    """Raise an alarm, also if it was raised and cleared before."""
    alarm_id, text = event.text("id"), event.text("text")
    await event.add(alarms, alarm_id, text=text, cleared=False)
    await event.change(alarms, alarm_id, text=text, cleared=False)


@_on("alarm.cleared")
async def _clear_alarm(event: DomainEvent) -> None:
    alarm = await event.row(alarms, event.text("id"), "the alarm is not raised yet")
    await event.change(alarms, alarm["id"], cleared=True)


@_on("document.created")
async def _create_document(event: DomainEvent) -> None:
    title, words = event.text("title"), len(str(event.data.get("text") or "").split())
    await event.add(documents, event.text("id"), title=title, words=words, archived=False)


@_on("document.archived")
async def _archive_document(event: DomainEvent) -> None:
    document = await event.row(documents, event.text("id"), "the document is not created yet")
    await event.change(documents, document["id"], archived=True)


@_on("workflow.started")
async def _start_workflow(event: DomainEvent) -> None:
    steps = event.data.get("steps")
    if type(steps) is not int or not 1 <= steps <= 100:
        raise Hopeless("steps: expected 1 to 100")
    await event.add(workflows, event.text("id"), owner=event.text("owner"), steps=steps, done=0)


@_on("workflow.advanced")
async def _advance_workflow(event: DomainEvent) -> None:
    """Complete a step. After the last one, the owner is notified."""
    workflow = await event.row(workflows, event.text("id"), "the workflow is not started yet")
    await event.change(workflows, workflow["id"], done=workflow["done"] + 1)
    if workflow["done"] + 1 == workflow["steps"]:
        note = {"to": workflow["owner"], "text": f"workflow {workflow['id']} is done"}
        await event.send("notification.requested", note)


@_on("notification.requested")
async def _notify(event: DomainEvent) -> None:
    """Store a notification. If the mailbox is busy, request a longer delay."""
    recipient = event.text("to")
    if "@" not in recipient:
        raise Hopeless(f"to: expected an address with @, got {recipient[:100]!r}")
    if recipient.startswith(_BUSY):
        raise MissingYet("the mailbox is busy", after=300)
    text = event.text("text")
    await event.add(notifications, event.context.message_id, recipient=recipient, text=text)
