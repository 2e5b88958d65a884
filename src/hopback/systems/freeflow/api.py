"""The HTTP side: publish events of every domain, look at what they did."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sqlalchemy import select
from starlette.responses import JSONResponse
from starlette.routing import Route

from hopback import Publisher, compose
from hopback.systems.database import Database
from hopback.systems.freeflow.domains import DOMAINS, EXCHANGE
from hopback.systems.freeflow.tables import METADATA, VIEWS
from hopback.systems.web import RequestRefused, json_body, web_application

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette
    from starlette.requests import Request

    from hopback import Broker
    from hopback.systems.freeflow.settings import FreeFlowSettings

__all__ = ["api"]

_PATIENCE = 5.0
_MOST_ROWS = 100
_DOMAINS = (*DOMAINS, "audit")


def api(settings: FreeFlowSettings, broker: Broker) -> Starlette:
    """The web application of FreeFlow."""
    api = _FreeFlowApi(Database(settings.database, METADATA))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        publisher = Publisher(broker, name="freeflow api", timeout=_PATIENCE)
        async with api.database.lifespan(), publisher as api.publisher:
            yield

    return web_application(
        [
            Route("/events/{routing_key}", api.publish, methods=["POST"]),
            Route("/{view}", api.show),
        ],
        lifespan,
    )


class _FreeFlowApi:
    """Answers requests."""

    publisher: Publisher

    def __init__(self, database: Database) -> None:
        self.database = database

    async def publish(self, request: Request) -> JSONResponse:
        """Publish an event: `POST /events/document.created`; 202 when the broker has confirmed."""
        routing_key = request.path_params["routing_key"]
        domain, _, what = routing_key.partition(".")
        if domain not in _DOMAINS or not what or "." in what:
            known = ", ".join(_DOMAINS)
            raise RequestRefused(f"expected <domain>.<event>, the domain one of {known}", 404)
        message = compose(EXCHANGE, routing_key, dict(await json_body(request)))
        await self.publisher.publish(message)
        return JSONResponse({"id": message.properties.message_id}, 202)

    async def show(self, request: Request) -> JSONResponse:
        """The first rows of a read model."""
        view = VIEWS.get(request.path_params["view"])
        if view is None:
            raise RequestRefused(f"expected one of {', '.join(VIEWS)}", 404)
        query = select(view).order_by(*view.primary_key).limit(_MOST_ROWS)
        return JSONResponse([dict(row) for row in await self.database.rows(query)])
