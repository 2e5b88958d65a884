"""The HTTP API, which publishes events, shows orders, and opens or closes the warehouse."""

from __future__ import annotations

from sqlalchemy import select
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from hopback import compose
from hopback.broker import Broker
from hopback.store import Database
from hopback.systems.database import find_row
from hopback.systems.ratatoskr.orders import METADATA, TYPES, open_warehouse, orders
from hopback.systems.ratatoskr.settings import RatatoskrSettings
from hopback.systems.web import (
    RequestRefused,
    TopologyPublisher,
    idempotency_key,
    json_body,
    publish,
    web_application,
)


def create_api(settings: RatatoskrSettings, broker: Broker) -> Starlette:
    """Return the web application of Ratatoskr's sample service."""
    database = Database(settings.database, tables=METADATA, relays=False)
    publisher = TopologyPublisher(broker, settings.topology(), name="ratatoskr api")

    async def publish_event(request: Request) -> JSONResponse:
        """Publish an event. It is validated by the consumer.

        If several requests have the same `Idempotency-Key`, the event is applied only once.
        """
        body = await json_body(request)
        if body.get("type") not in TYPES:
            raise RequestRefused(f"type: expected one of {', '.join(TYPES)}")
        message = compose(
            body["type"],
            dict(body),
            exchange=settings.exchange,
            message_id=idempotency_key(request),
            message_type=body["type"],
        )
        return await publish(publisher, message)

    async def show_order(request: Request) -> JSONResponse:
        mine = orders.c.id == request.path_params["order"]
        found = await find_row(database, select(orders).where(mine))
        if found is None:
            raise RequestRefused("no such order yet", status=404)
        return JSONResponse(found)

    async def set_warehouse(request: Request) -> JSONResponse:
        """Open or close the warehouse. While it is closed, new orders fail."""
        is_open = (await json_body(request)).get("open")
        if not isinstance(is_open, bool):
            raise RequestRefused("open: expected true or false")
        async with database.transaction() as tx:
            await open_warehouse(tx, is_open=is_open)
        return JSONResponse({"open": is_open})

    return web_application(
        [
            Route("/events", publish_event, methods=["POST"]),
            Route("/orders/{order}", show_order),
            Route("/warehouse", set_warehouse, methods=["PUT"]),
        ],
        publisher=publisher,
        database=database,
    )
