"""The consumers: a queue for each group of domains, and the audit, which gets everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects import postgresql, sqlite

from hopback import App, Context, Rule, Verdict
from hopback.designs import freeflow
from hopback.designs.freeflow import QUEUES
from hopback.systems.database import Database
from hopback.systems.freeflow.domains import DOMAINS, DomainEvent, Hopeless
from hopback.systems.freeflow.tables import METADATA, audit

if TYPE_CHECKING:
    from hopback.store import Transaction
    from hopback.systems.freeflow.settings import FreeFlowSettings

__all__ = ["consumers"]

_AUDIT = "freeflow.audit.queue"


def consumers(settings: FreeFlowSettings) -> App:
    """The application that handles every domain; `--queue` runs some of them alone."""
    database = Database(settings.database, METADATA)
    app = App("freeflow", topology=freeflow(hardened=settings.hardened), lifespan=database.lifespan)
    domain_queues = [queue for queue in QUEUES if queue != _AUDIT]

    async def handle(data: dict[str, Any], context: Context) -> None:
        """By the domain of the original routing key, which a retry keeps."""
        domain, _, what = context.routing_key.partition(".")
        async with database.transaction() as tx:
            if await tx.first_time(context.queue, context.message_id):
                await DOMAINS[domain](DomainEvent(what, data, tx, context))

    for queue in domain_queues:
        app.handler(queue, rules=[Rule(Hopeless, Verdict.PARK)])(handle)

    @app.handler(_AUDIT)
    async def note(context: Context) -> None:
        async with database.transaction() as tx:
            await _note(tx, context, database.clock.now())

    return app


async def _note(tx: Transaction, context: Context, now: float) -> None:
    """Append the event, or count that it arrived again."""
    dialect = postgresql if tx.connection.dialect.name == "postgresql" else sqlite
    row = {"message_id": context.message_id, "routing_key": context.routing_key}
    entry = dialect.insert(audit).values(row | {"arrivals": 1, "last_at": now})
    again = {"arrivals": audit.c.arrivals + 1, "last_at": now}
    await tx.execute(entry.on_conflict_do_update(index_elements=["message_id"], set_=again))
