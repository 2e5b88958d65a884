"""The HTTP API: users are published and confirmed before the client hears of them; raffles are drawn."""

from __future__ import annotations

import hashlib
import logging
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.routing import Route

from hopback import compose
from hopback.systems.database import Database
from hopback.systems.language import in_language
from hopback.systems.raffle.raffles import (
    METADATA,
    InvalidUser,
    Raffles,
    User,
    find_user,
    no_such_user,
)
from hopback.systems.web import (
    RequestRefused,
    TopologyPublisher,
    field,
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
    from hopback.systems.raffle.settings import RaffleSettings

_LOG = logging.getLogger("hopback.systems.raffle.publisher")


def api(settings: RaffleSettings, broker: Broker) -> Starlette:
    """The web application of the raffle."""
    database = Database(settings.database, METADATA)
    publisher = TopologyPublisher(
        broker, settings.topology(), name="raffle api", on_state=_log_state
    )
    api = _RaffleApi(database, publisher)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with database.lifespan(), publisher:
            yield

    return web_application(
        [
            Route("/api/v1/users", api.create_user, methods=["POST"]),
            Route("/api/v1/users/{user_id}", api.show_user),
            Route("/api/v1/raffles", api.create_raffle, methods=["POST"]),
            Route("/api/v1/raffles/{raffle_id}", api.show_raffle),
            Route("/api/v1/raffles/{raffle_id}/entries", api.join, methods=["POST"]),
            Route("/api/v1/raffles/{raffle_id}/draw", api.draw, methods=["POST"]),
        ],
        lifespan,
        checks={"broker": publisher.check, "database": database.check},
        languages=("pt", "en") if settings.language == "pt" else ("en", "pt"),
    )


def _log_state(state: object, reason: str) -> None:
    if reason:
        _LOG.warning("the broker connection is %s: %s", state, reason)


class _RaffleApi:
    """Answers requests."""

    def __init__(self, database: Database, publisher: TopologyPublisher) -> None:
        self._database = database
        self._publisher = publisher
        self._raffles = Raffles(database)

    async def create_user(self, request: Request) -> JSONResponse:
        """Give the user an id and publish it; the consumer inserts the user."""
        body, key = await json_body(request), idempotency_key(request)
        name, email = field(body, "name"), field(body, "email", most=254)
        user = User(_id_of(key, name, email), name, email)
        try:
            user.validated()
        except InvalidUser as error:
            raise RequestRefused(str(error)) from None
        payload = {"id": user.id, "name": user.name, "email": user.email}
        message = compose("raffle_queue", payload, exchange="raffle_exchange", message_id=user.id)
        await publish(self._publisher, message)
        return JSONResponse({"id": user.id})

    async def show_user(self, request: Request) -> JSONResponse:
        """A user that was inserted."""
        user = await find_user(self._database, request.path_params["user_id"])
        if user is None:
            raise no_such_user()
        return JSONResponse(dict(user))

    async def create_raffle(self, request: Request) -> JSONResponse:
        """A new raffle."""
        name = field(await json_body(request), "name")
        return JSONResponse({"id": await self._raffles.create(name)})

    async def show_raffle(self, request: Request) -> JSONResponse:
        """A raffle and its result."""
        return JSONResponse(dict(await self._raffles.result(request.path_params["raffle_id"])))

    async def join(self, request: Request) -> JSONResponse:
        """A user joins; joining twice changes nothing."""
        user_id = field(await json_body(request), "userId")
        await self._raffles.join(request.path_params["raffle_id"], user_id)
        return await self.show_raffle(request)

    async def draw(self, request: Request) -> JSONResponse:
        """The draw; there is one and no second."""
        winners = (await json_body(request)).get("winners", 1)
        if not isinstance(winners, int) or isinstance(winners, bool) or not 1 <= winners <= 1000:
            raise RequestRefused(
                in_language(
                    "winners: expected a number from 1 to 1000",
                    "winners: esperado um número de 1 a 1000",
                )
            )
        await self._raffles.draw(request.path_params["raffle_id"], winners)
        return await self.show_raffle(request)


def _id_of(key: str | None, name: str, email: str) -> str:
    """A new id, or the one that this key gives this user: who sends the same again gets the same.

    A UUID of version 4 is the id itself, as an answer that was in doubt names it.
    """
    if key is None:
        return str(uuid.uuid4())
    try:
        given = uuid.UUID(key)
    except ValueError:
        given = None
    if given is not None and given.version == 4:
        return str(given)
    digest = hashlib.sha256("\x00".join((key, name, email)).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))
