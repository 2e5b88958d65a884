"""Accept and show orders with FastAPI: `uvicorn orders.web:web`."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from hopback import Publisher, RequestClient
from orders.model import Order

url = os.environ["HOPBACK_BROKER"]
publisher, client = Publisher(url), RequestClient(url)


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncGenerator[None]:
    async with publisher, client:
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
async def place(order: Order) -> Order:
    await publisher.publish("order.placed", order, exchange="shop", message_id=f"order-{order.id}")
    return order


@web.get("/orders/{order_id}")
async def find(order_id: int) -> Order | None:
    return await client.request("orders.asked", order_id, returns=Order | None, timeout="5s")
