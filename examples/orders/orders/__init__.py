"""The application: `hopback run orders:app`."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

from hopback import App, Context, NextRun, Relay
from hopback.store import Outbox, migrate
from orders import charging, mailing, placing
from orders.database import Base, database


@asynccontextmanager
async def lifespan(app: App) -> AsyncGenerator[None]:
    """Create the tables, and publish the messages of the outbox while the application runs."""
    await migrate(database, also=Base.metadata)
    relay = asyncio.create_task(Relay(Outbox(database, str(uuid4())), app.send).run())
    yield
    relay.cancel()
    await asyncio.wait({relay})
    await database.dispose()


app = App("orders", lifespan=lifespan)
app.delays()
app.include(placing.router, charging.router, mailing.router)


@app.middleware
async def logged(context: Context, run: NextRun) -> None:
    """Log every successful run. Hopback logs the failures."""
    await run()
    logging.info("%s %s is done", context.queue, context.message_id)
