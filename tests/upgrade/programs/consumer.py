"""A consumer that runs on either version: some orders fail at first, some always. It says what it has done.

Arguments: the address of the broker, the file to write to, the name of this consumer.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import hopback
from hopback import App, Context, RabbitMQ, Service

URL, FILE, NAME = sys.argv[1:4]

app = App("shop")


@app.handler("orders", retry=["100ms", "300ms"], concurrency=5)
async def handle(order: dict, context: Context) -> None:
    """Every seventh fails once, every fiftieth always."""
    if order["id"] % 50 == 0 or (order["id"] % 7 == 0 and context.attempt == 1):
        raise ConnectionError("the warehouse does not answer")
    await asyncio.sleep(0.002)
    done.write(f"{order['id']} {context.attempt} {NAME}\n")
    done.flush()


async def main() -> None:
    """Until it is told to end."""
    service = Service(app, RabbitMQ(URL))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.stop)
    await service.run()


print(hopback.__file__, flush=True)
with open(FILE, "a") as done:
    asyncio.run(main())
