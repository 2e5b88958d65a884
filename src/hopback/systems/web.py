"""What the systems' web applications have in common: JSON in, JSON out, errors that say what to do."""

from __future__ import annotations

import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from hopback import BrokerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request
    from starlette.routing import BaseRoute

__all__ = ["RequestRefused", "field", "json_body", "opened", "web_application"]

_LOG = logging.getLogger("hopback.systems")
_MOST_BYTES = 1_000_000


class RequestRefused(HTTPException):
    """A request that is answered with an error of ours: 4xx, and what to do instead."""

    def __init__(self, detail: str, status: int = 400) -> None:
        super().__init__(status, detail)


def web_application(
    routes: Sequence[BaseRoute],
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
) -> Starlette:
    """An application whose errors are JSON; a broker or database that is away is a 503."""
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            HTTPException: _refused,
            BrokerError: _away,
            SQLAlchemyError: _away,
            OSError: _away,
        },
    )


@asynccontextmanager
async def opened(application: Starlette) -> AsyncIterator[Starlette]:
    """Keep what the application needs open, where no web server does that for it."""
    async with application.router.lifespan_context(application):
        yield application


async def json_body(request: Request) -> Mapping[str, Any]:
    """The body as a JSON object; Refused says what is wrong with it."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise RequestRefused(f"expected a body of at most {_MOST_BYTES} bytes", 413)
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise RequestRefused("expected a JSON object, got something that is no JSON") from None
    if not isinstance(found, dict):
        raise RequestRefused(f"expected a JSON object, got {type(found).__name__}")
    return found


def field(body: Mapping[str, Any], name: str, *, most: int = 200) -> str:
    """A text field of a body; Refused names it where it is missing or too long."""
    found = body.get(name)
    if not isinstance(found, str) or not found.strip() or len(found) > most:
        raise RequestRefused(f"{name}: expected text of 1 to {most} letters")
    return found.strip()


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it alone
    return JSONResponse({"error": error.detail}, error.status_code)


async def _away(request: Request, error: Exception) -> JSONResponse:
    """The client may try again; what exactly is away stands in the log, without secrets."""
    what = "the broker" if isinstance(error, BrokerError) else "the database"
    _LOG.error("%s %s: %s: %s", request.method, request.url.path, what, type(error).__name__)
    detail = f"{what} cannot be reached; nothing was done, try again later"
    return JSONResponse({"error": detail}, 503, {"Retry-After": "5"})
