"""The consumers: a queue for each group of domains, and the audit, which notes whatever it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects import postgresql, sqlite

from hopback import App, Context, Rule, Verdict
from hopback.designs.freeflow import queues_of
from hopback.systems.database import Database
from hopback.systems.freeflow.domains import DOMAINS, METADATA, DomainEvent, Hopeless, audit
from hopback.systems.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.systems.freeflow.domains import Handle
    from hopback.systems.freeflow.settings import FreeFlowSettings

_AUDIT = "audit"
_RETRY = "retry"
"""The second word of the key that every message comes back by."""


def consumers(settings: FreeFlowSettings, handlers: Mapping[str, Handle] = DOMAINS) -> App:
    """The application that handles every domain; `--queue` runs some of them alone.

    `handlers` has a function for each domain of the settings; the audit has its own.
    """
    unknown = [each for each in settings.domains if each not in handlers and each != _AUDIT]
    if unknown:
        known = ", ".join((*handlers, _AUDIT))
        raise SettingsError(
            f"FREEFLOW_DOMAINS: expected domains that have a handler ({known}), got {unknown[0]!r}"
        )
    database = Database(settings.database, METADATA)
    app = App("freeflow", topology=settings.topology(), lifespan=database.lifespan)

    async def handle(data: dict[str, Any], context: Context) -> None:
        """By the domain of the original routing key, which a retry keeps."""
        domain, _, what = context.routing_key.partition(".")
        if what == _RETRY:
            raise Hopeless(
                f"it came back as {context.routing_key} without x-original-routing-key: "
                "nobody knows which event it was"
            )
        async with database.transaction() as tx:
            # Two equal events without a message id cannot be told from one that came twice: each counts.
            own_id = context.delivery.properties.message_id
            if own_id is None or await tx.first_time(context.queue, own_id):
                await handlers[domain](DomainEvent(what, data, tx, context))

    async def note(context: Context) -> None:
        async with database.transaction() as tx:
            # Append the event, or count that it arrived again.
            now = database.clock.now()
            dialect = postgresql if tx.connection.dialect.name == "postgresql" else sqlite
            row = {"message_id": context.message_id, "routing_key": context.routing_key}
            entry = dialect.insert(audit).values(row | {"arrivals": 1, "last_at": now})
            again = {"arrivals": audit.c.arrivals + 1, "last_at": now}
            await tx.execute(entry.on_conflict_do_update(index_elements=["message_id"], set_=again))

    for queue, domains in queues_of(settings.domains).items():
        if domains == (_AUDIT,):
            app.handler(queue)(note)
        else:
            app.handler(queue, rules=[Rule(Hopeless, Verdict.PARK)])(handle)
    return app
