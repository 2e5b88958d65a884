"""The HTTP side: publish events, look at orders, close the warehouse."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.routing import Route

from hopback import compose
from hopback.systems.database import Database
from hopback.systems.ratatoskr.orders import METADATA, TYPES, find_order, open_warehouse
from hopback.systems.web import (
    RequestRefused,
    TopologyPublisher,
    idempotency_key,
    json_body,
    publish,
    web_application,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette
    from starlette.requests import Request

    from hopback.broker import Broker
    from hopback.systems.ratatoskr.settings import RatatoskrSettings


def api(settings: RatatoskrSettings, broker: Broker) -> Starlette:
    """The web application of Ratatoskr's sample service."""
    database = Database(settings.database, METADATA)
    publisher = TopologyPublisher(broker, settings.topology(), name="ratatoskr api")
    api = _RatatoskrApi(settings, database, publisher)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with database.lifespan(), publisher:
            yield

    return web_application(
        [
            Route("/events", api.publish, methods=["POST"]),
            Route("/orders/{order}", api.show),
            Route("/warehouse", api.warehouse, methods=["PUT"]),
        ],
        lifespan,
        checks={"broker": publisher.check, "database": database.check},
    )


class _RatatoskrApi:
    """Answers requests."""

    def __init__(
        self, settings: RatatoskrSettings, database: Database, publisher: TopologyPublisher
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._database = database

    async def publish(self, request: Request) -> JSONResponse:
        """Publish an event; whether it makes sense is the consumer's to say.

        A client that sends an `Idempotency-Key` may send the event again: it has one effect.
        """
        body = await json_body(request)
        if body.get("type") not in TYPES:
            raise RequestRefused(f"type: expected one of {', '.join(TYPES)}")
        message = compose(
            body["type"],
            dict(body),
            exchange=self._settings.exchange,
            message_id=idempotency_key(request),
            message_type=body["type"],
        )
        await publish(self._publisher, message)
        return JSONResponse({"id": message.properties.message_id}, 202)

    async def show(self, request: Request) -> JSONResponse:
        """An order and its state."""
        found = await find_order(self._database, request.path_params["order"])
        if found is None:
            raise RequestRefused("no such order (yet)", 404)
        return JSONResponse(found)

    async def warehouse(self, request: Request) -> JSONResponse:
        """Close the warehouse, and orders fail until it is open again."""
        is_open = (await json_body(request)).get("open")
        if not isinstance(is_open, bool):
            raise RequestRefused("open: expected true or false")
        await open_warehouse(self._database, is_open=is_open)
        return JSONResponse({"open": is_open})
