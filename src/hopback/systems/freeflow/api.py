"""The HTTP side: publish events of every domain, look at what they did."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sqlalchemy import select
from starlette.responses import JSONResponse
from starlette.routing import Route

from hopback import compose
from hopback.systems.database import Database
from hopback.systems.freeflow.domains import EXCHANGE, METADATA, VIEWS
from hopback.systems.web import (
    RequestRefused,
    TopologyPublisher,
    idempotency_key,
    json_body,
    publish,
    short_text,
    web_application,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy import Table
    from starlette.applications import Starlette
    from starlette.requests import Request

    from hopback.broker import Broker
    from hopback.systems.freeflow.settings import FreeFlowSettings

_MOST_ROWS = 100
"""Of a read model: enough for a look, and never a page that takes a browser down."""


def api(settings: FreeFlowSettings, broker: Broker) -> Starlette:
    """The web application of FreeFlow."""
    database = Database(settings.database, METADATA)
    publisher = TopologyPublisher(broker, settings.topology(), name="freeflow api")
    api = _FreeFlowApi(database, publisher, settings.domains)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with database.lifespan(), publisher:
            yield

    return web_application(
        [
            Route("/events/{routing_key}", api.publish, methods=["POST"]),
            Route("/{view}", api.show),
            Route("/{view}/{row}", api.show_one),
        ],
        lifespan,
        checks={"broker": publisher.check, "database": database.check},
    )


class _FreeFlowApi:
    """Answers requests."""

    def __init__(
        self, database: Database, publisher: TopologyPublisher, domains: tuple[str, ...]
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._domains = domains

    async def publish(self, request: Request) -> JSONResponse:
        """Publish an event: `POST /events/document.created`; 202 when the broker has confirmed."""
        routing_key = request.path_params["routing_key"]
        domain, _, what = routing_key.partition(".")
        if domain not in self._domains or not what or "." in what:
            known = ", ".join(self._domains)
            raise RequestRefused(f"expected <domain>.<event>, the domain one of {known}", 404)
        message = compose(
            short_text(routing_key, "the event"),
            dict(await json_body(request)),
            exchange=EXCHANGE,
            message_id=idempotency_key(request),
        )
        await publish(self._publisher, message)
        return JSONResponse({"id": message.properties.message_id}, 202)

    async def show(self, request: Request) -> JSONResponse:
        """The first rows of a read model."""
        view = _view(request)
        query = select(view).order_by(*view.primary_key).limit(_MOST_ROWS)
        return JSONResponse([dict(row) for row in await self._database.rows(query)])

    async def show_one(self, request: Request) -> JSONResponse:
        """One row of a read model, by its id."""
        view = _view(request)
        (key,) = view.primary_key
        found = await self._database.row(select(view).where(key == request.path_params["row"]))
        if found is None:
            raise RequestRefused("not there (yet)", 404)
        return JSONResponse(dict(found))


def _view(request: Request) -> Table:
    found = VIEWS.get(request.path_params["view"])
    if found is None:
        raise RequestRefused(f"expected one of {', '.join(VIEWS)}", 404)
    return found
