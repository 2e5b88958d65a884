"""Orders by HTTP with FastAPI: `uvicorn orders.web:web`."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from hopback import Publisher, RequestClient
from orders.payloads import OrderPlaced

url = os.environ["HOPBACK_BROKER"]
publisher, client = Publisher(url), RequestClient(url)


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncGenerator[None]:
    async with publisher, client:
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
async def place(order: OrderPlaced) -> OrderPlaced:
    await publisher.publish("order.placed", order, exchange="shop", message_id=f"order-{order.id}")
    return order


@web.get("/orders/{order}")
async def find(order: int) -> OrderPlaced | None:
    return await client.request("orders.asked", order, returns=OrderPlaced | None, timeout="5s")
