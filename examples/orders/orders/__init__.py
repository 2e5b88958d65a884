"""The application. Run it with `hopback run orders:app`."""

import logging

from hopback import App, Context, NextRun
from orders import charging, mailing, placing
from orders.model import database

app = App("orders", lifespan=database.lifespan)  # the lifespan also publishes the outbox
app.delays()
app.include(placing.router, charging.router, mailing.router)


@app.middleware
async def log_success(context: Context, run: NextRun) -> None:
    await run()  # Hopback logs failures
    logging.info("%s: handled %s", context.queue, context.message_id)
