"""Orders by HTTP with FastAPI: `uvicorn orders.web:web`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from hopback import Publisher, RabbitMQ, compose
from orders.payloads import OrderPlaced


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with Publisher(RabbitMQ(os.environ["HOPBACK_BROKER"])) as publisher:
        web.state.publisher = publisher
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
async def place(order: OrderPlaced, request: Request) -> OrderPlaced:
    message = compose("shop", "order.placed", order, message_id=f"order-{order.id}")
    await request.app.state.publisher.publish(message)
    return order
