"""The HTTP API. `POST /api/v1/users` publishes a user, and the other endpoints manage the raffles."""

from __future__ import annotations

import hashlib
import uuid

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from hopback import compose
from hopback.broker import Broker
from hopback.store import Database
from hopback.systems.raffle import raffles
from hopback.systems.raffle.raffles import InvalidUser, User
from hopback.systems.raffle.settings import RaffleSettings
from hopback.systems.web import (
    RequestRefused,
    TopologyPublisher,
    field,
    idempotency_key,
    json_body,
    publish,
    web_application,
)


def create_api(settings: RaffleSettings, broker: Broker) -> Starlette:
    """Return the web application of the raffle."""
    database = Database(settings.database, tables=raffles.METADATA, relays=False)
    publisher = TopologyPublisher(broker, settings.topology(), name="raffle api")

    async def create_user(request: Request) -> JSONResponse:
        """Publish a user with a new id. The consumer inserts it into the database."""
        body, key = await json_body(request), idempotency_key(request)
        name, email = field(body, "name"), field(body, "email", most=254)
        user = User(_choose_id(key, name, email), name, email)
        try:
            user.validate()
        except InvalidUser as error:
            raise RequestRefused(str(error)) from None
        message = compose("raffle_queue", user, exchange="raffle_exchange", message_id=user.id)
        return await publish(publisher, message, 200)

    async def get_user(request: Request) -> JSONResponse:
        async with database.transaction() as tx:
            return JSONResponse(await raffles.show_user(tx, request.path_params["user_id"]))

    async def post_raffle(request: Request) -> JSONResponse:
        name = field(await json_body(request), "name")
        async with database.transaction() as tx:
            return JSONResponse(await raffles.create_raffle(tx, name))

    async def get_raffle(request: Request) -> JSONResponse:
        async with database.transaction() as tx:
            return JSONResponse(await raffles.show_raffle(tx, request.path_params["raffle_id"]))

    async def join(request: Request) -> JSONResponse:
        """Add a user to a raffle. A repeated request has no effect."""
        user_id = field(await json_body(request), "userId")
        async with database.transaction() as tx:
            await raffles.join_raffle(tx, request.path_params["raffle_id"], user_id)
        return await get_raffle(request)

    async def draw(request: Request) -> JSONResponse:
        """Draw the winners. This is possible only once."""
        winners = (await json_body(request)).get("winners", 1)
        if type(winners) is not int or not 1 <= winners <= 1000:
            raise RequestRefused(
                "winners: expected a number from 1 to 1000",
                "winners: esperado um número de 1 a 1000",
            )
        async with database.transaction() as tx:
            await raffles.draw_raffle(tx, request.path_params["raffle_id"], winners)
        return await get_raffle(request)

    return web_application(
        [
            Route("/api/v1/users", create_user, methods=["POST"]),
            Route("/api/v1/users/{user_id}", get_user),
            Route("/api/v1/raffles", post_raffle, methods=["POST"]),
            Route("/api/v1/raffles/{raffle_id}", get_raffle),
            Route("/api/v1/raffles/{raffle_id}/entries", join, methods=["POST"]),
            Route("/api/v1/raffles/{raffle_id}/draw", draw, methods=["POST"]),
        ],
        publisher=publisher,
        database=database,
        languages=("pt", "en") if settings.language == "pt" else ("en", "pt"),
    )


def _choose_id(key: str | None, name: str, email: str) -> str:
    """Return the id of a new user. If there is an idempotency key, a repeated request gets the same
    id.

    A key that is a UUID of version 4 is used as the id. If a publish is not confirmed, the error
    asks the client to send such a key.
    """
    if key is None:
        return str(uuid.uuid4())
    given = raffles.read_id(key)
    if given is not None and uuid.UUID(given).version == 4:
        return given
    digest = hashlib.sha256("\x00".join((key, name, email)).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))
