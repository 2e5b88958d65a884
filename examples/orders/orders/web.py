"""Orders by HTTP with FastAPI: `uvicorn orders.web:web`."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from hopback import Publisher, RequestClient
from orders.payloads import OrderPlaced


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncGenerator[None]:
    url = os.environ["HOPBACK_BROKER"]
    async with Publisher(url) as publisher, RequestClient(url) as client:
        web.state.publisher, web.state.client = publisher, client
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
async def place(order: OrderPlaced, request: Request) -> OrderPlaced:
    publisher = request.app.state.publisher
    await publisher.publish("order.placed", order, exchange="shop", message_id=f"order-{order.id}")
    return order


@web.get("/orders/{order}")
async def find(order: int, request: Request) -> OrderPlaced | None:
    return await request.app.state.client.request("orders.asked", order, timeout="5s")
