"""The gateway's admin endpoints: who may use them, and for which queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hopback.admin.auth import (
    BadToken,
    Jwks,
    SharedSecret,
    TokenReader,
    fetch_json,
    forbidden,
    unauthorized,
)
from hopback.admin.documented import documented_routes
from hopback.admin.roles import Role
from hopback.deadletters.requests import Who

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import Route

    from hopback import Clock
    from hopback.deadletters.service import Operations
    from hopback.systems.file_pipeline.settings import PipelineSettings

__all__ = ["ACCEPTED", "admin_routes"]

ACCEPTED = tuple(
    f"q.{name}.dlq"
    for name in (
        "upload.commands",
        "validator",
        "thumbnail",
        "extractor",
        "projection",
        "notification",
        "audit",
    )
)
"""The dead-letter queues that the document names; every other name is refused."""


def admin_routes(operations: Operations, settings: PipelineSettings, clock: Clock) -> list[Route]:
    """The three documented endpoints, for the role `admin`."""
    door = _AdminSignIn(settings, clock)
    return documented_routes(operations, door.authorize, clock, queues=ACCEPTED)


class _AdminSignIn:
    """Lets administrators in, by their token."""

    def __init__(self, settings: PipelineSettings, clock: Clock) -> None:
        self._tokens: TokenReader | None = None
        if settings.jwks_url:
            keys = Jwks(partial(fetch_json, settings.jwks_url), clock)
            self._tokens = TokenReader(settings.tokens(), (), keys)
        elif settings.secret:
            self._tokens = TokenReader(settings.tokens(), (), SharedSecret(settings.secret))

    async def authorize(self, request: Request) -> Who:
        """Who asks; Refused unless a token says that they are an administrator."""
        header = request.headers.get("authorization")
        if header is None:
            raise unauthorized("Missing Authorization header.")
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or self._tokens is None:
            raise unauthorized("Expected the Authorization header to be `Bearer TOKEN`.")
        try:
            principal = await self._tokens.read(token.strip())
        except BadToken as error:
            raise unauthorized(f"The token is not believed: {error}.") from error
        if not principal.allows_everywhere(Role.ADMIN):
            raise forbidden()
        return Who(principal.id.removeprefix("token:"), principal.name)
