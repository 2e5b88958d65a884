"""The HTTP API, which publishes events of all domains and shows the read models."""

from __future__ import annotations

from sqlalchemy import Table, select
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from hopback import compose
from hopback.broker import Broker
from hopback.store import Database
from hopback.systems.database import find_row, find_rows
from hopback.systems.freeflow.domains import EXCHANGE, METADATA, VIEWS
from hopback.systems.freeflow.settings import FreeFlowSettings
from hopback.systems.web import (
    RequestRefused,
    TopologyPublisher,
    idempotency_key,
    json_body,
    publish,
    short_text,
    web_application,
)

_MOST_ROWS = 100
"""The maximum number of rows in a response."""


def create_api(settings: FreeFlowSettings, broker: Broker) -> Starlette:
    """Return the web application of FreeFlow."""
    database = Database(settings.database, tables=METADATA, relays=False)
    publisher = TopologyPublisher(broker, settings.topology(), name="freeflow api")

    async def publish_event(request: Request) -> JSONResponse:
        """Publish an event, for example with `POST /events/document.created`. The response is 202
        once the broker has confirmed it.
        """
        routing_key = request.path_params["routing_key"]
        domain, _, what = routing_key.partition(".")
        if domain not in settings.domains or not what or "." in what:
            known = ", ".join(settings.domains)
            raise RequestRefused(
                f"expected <domain>.<event>, the domain one of {known}", status=404
            )
        message = compose(
            short_text(routing_key, "the event"),
            dict(await json_body(request)),
            exchange=EXCHANGE,
            message_id=idempotency_key(request),
        )
        return await publish(publisher, message)

    async def show_view(request: Request) -> JSONResponse:
        view = _find_view(request)
        query = select(view).order_by(*view.primary_key).limit(_MOST_ROWS)
        return JSONResponse(await find_rows(database, query))

    async def show_row(request: Request) -> JSONResponse:
        """Show the row with an id."""
        view = _find_view(request)
        (key,) = view.primary_key
        found = await find_row(database, select(view).where(key == request.path_params["row"]))
        if found is None:
            raise RequestRefused("no such row yet", status=404)
        return JSONResponse(found)

    return web_application(
        [
            Route("/events/{routing_key}", publish_event, methods=["POST"]),
            Route("/{view}", show_view),
            Route("/{view}/{row}", show_row),
        ],
        publisher=publisher,
        database=database,
    )


def _find_view(request: Request) -> Table:
    found = VIEWS.get(request.path_params["view"])
    if found is None:
        raise RequestRefused(f"expected one of {', '.join(VIEWS)}", status=404)
    return found
