"""The parts that all web applications of the systems share: JSON bodies, and errors with a remedy.

| cause | status | content of the error |
|---|---|---|
| the request cannot be read, encoded or stored | 400 | the field and the expected value |
| there is no connection, so the message was not sent | 503 | try again later |
| the message cannot be routed to a queue | 503 | the command that declares the topology |
| the broker refused the message | 503 | the message was not stored, try again later |
| the broker did not confirm in time | 503 | the message may have been stored; the key for a retry |
| the database does not answer | 503 | try again, and check first if it was a change |
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, NoReturn, Self, TypeAlias

from sqlalchemy.exc import DataError, SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute

from hopback import Message, Publisher
from hopback.broker import Broker
from hopback.broker.declare import declare
from hopback.errors import (
    AccessRefused,
    BrokerError,
    ConfirmTimeout,
    ConnectionFailed,
    ConnectionLost,
    InvalidMessage,
    Nacked,
    NotFound,
    PublishInterrupted,
    PublishRefused,
    Returned,
    TopologyError,
)
from hopback.store import Database
from hopback.systems.language import Language, in_language
from hopback.systems.web_health import RequestMiddleware, WebHealth
from hopback.topology import Topology

Lifespan: TypeAlias = Callable[[Starlette], AbstractAsyncContextManager[None]]

_LOG = logging.getLogger("hopback.systems")
_MOST_BYTES = 1_000_000
"""The maximum size of a JSON body in bytes. It contains an event and never a file."""
_DEEPEST = 100
"""The maximum depth of a JSON body. A deeper one could be read, but not be written again."""
_SHORT_BYTES = 255
"""The maximum size of routing keys, message ids and types in AMQP 0-9-1, in bytes."""
_KEY = re.compile(r"[!-~]{1,128}")
"""Valid values of `Idempotency-Key` and `X-Correlation-ID`. They are used as ids of messages and appear
unchanged in logs and headers.
"""
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_AGAIN = {"Retry-After": "5"}
"""When a broker or a database restarts, it is usually available again within seconds."""


class RequestRefused(HTTPException):
    """A response with an error and its remedy in the language of the client."""

    def __init__(
        self,
        english: str,
        portuguese: str = "",
        *,
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, in_language(english, portuguese or english), headers)


def web_application(
    routes: Sequence[BaseRoute],
    *,
    publisher: TopologyPublisher | None = None,
    database: Database | None = None,
    lifespan: Lifespan | None = None,
    languages: Sequence[Language] = ("en",),
) -> Starlette:
    """Return a web application that reports errors as JSON, as described in the table above.

    It also provides health checks and metrics (see `web_health`). The publisher and the database
    are opened by the application, or by `lifespan` if it is given. The application is ready when
    both can be used. `languages` lists the languages of its responses. The first one is the
    default.
    """

    @asynccontextmanager
    async def open_both(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if publisher is not None:
                await stack.enter_async_context(publisher)
                if database is not None:
                    await stack.enter_async_context(database.lifespan(publisher))
            yield

    used = {"broker": publisher, "database": database}
    health = WebHealth({name: one.check for name, one in used.items() if one is not None})
    every = [*health.routes, *routes]
    around = Middleware(RequestMiddleware, health=health, routes=every, languages=languages)
    return Starlette(
        routes=every,
        lifespan=lifespan or open_both,
        middleware=[around],
        exception_handlers={
            HTTPException: _refused,
            InvalidMessage: _unfit,
            UnicodeEncodeError: _unfit,
            DataError: _unfit,
            BrokerError: _broker_failed,
            SQLAlchemyError: _database_failed,
            OSError: _database_failed,
        },
    )


@asynccontextmanager
async def opened(application: Starlette) -> AsyncIterator[Starlette]:
    """Run the lifespan of an application without a web server."""
    async with application.router.lifespan_context(application):
        yield application


async def json_body(request: Request, *, with_nul: bool = False) -> Mapping[str, Any]:
    """Return the body as a JSON object. Raises RequestRefused if it is not one.

    `with_nul` allows NUL characters, for content that is only forwarded. They cannot be stored in a
    table.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise RequestRefused(
                f"expected a body of at most {_MOST_BYTES} bytes",
                f"esperado um corpo de no máximo {_MOST_BYTES} bytes",
                status=413,
            )
    try:
        found = json.loads(body or b"{}", parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        raise _no_object("invalid JSON", "JSON inválido") from None
    if not isinstance(found, dict):
        raise _no_object("another value", "outro valor")
    # Refuse values that cannot be encoded or stored, at any depth. The error names the top-level
    # field.
    waiting = [(str(name), value, 1) for name, value in found.items()]
    waiting += [("the name of a field", name, 1) for name in found]
    while waiting:
        name, value, depth = waiting.pop()
        if depth > _DEEPEST:
            raise RequestRefused(
                f"{name}: expected at most {_DEEPEST} nested levels",
                f"{name}: esperados no máximo {_DEEPEST} níveis aninhados",
            )
        if isinstance(value, dict):
            waiting += [(name, inner, depth + 1) for inner in (*value, *value.values())]
        elif isinstance(value, list):
            waiting += [(name, inner, depth + 1) for inner in value]
        elif isinstance(value, str) and _SURROGATE.search(value):
            shown = _SURROGATE.sub("?", name)
            raise RequestRefused(
                f"{shown}: expected text, got half of a surrogate pair",
                f"{shown}: esperado texto, recebida metade de um par substituto",
            )
        elif isinstance(value, str) and not with_nul and "\x00" in value:
            raise RequestRefused(
                f"{name}: expected text without NUL (\\u0000)",
                f"{name}: esperado texto sem NUL (\\u0000)",
            )
    return found


def _no_object(english: str, portuguese: str) -> RequestRefused:
    return RequestRefused(
        f"expected a JSON object, got {english}",
        f"esperado um objeto JSON, recebido {portuguese}",
    )


def _no_number(name: str) -> NoReturn:
    raise RequestRefused(
        f"expected JSON, got {name}, which JSON does not have",
        f"esperado JSON, recebido {name}, que não existe em JSON",
    )


def _finite(text: str) -> float:
    """Parse a number. Numbers that Python reads as infinity cannot be written as JSON again."""
    if math.isinf(found := float(text)):
        raise RequestRefused(
            f"expected numbers below 1.8e308, got {text[:20]}",
            f"esperados números menores que 1.8e308, recebido {text[:20]}",
        )
    return found


def field(body: Mapping[str, Any], name: str, *, most: int = 200) -> str:
    """Return a text field of a body. Raises RequestRefused if it is missing or too long."""
    found = body.get(name)
    if not isinstance(found, str) or not found.strip() or len(found) > most or "\x00" in found:
        raise RequestRefused(
            f"{name}: expected text of 1 to {most} characters",
            f"{name}: esperado texto de 1 a {most} caracteres",
        )
    return found.strip()


def short_text(text: str, name: str) -> str:
    """Return the text if it fits into a routing key, type or message id. Raises RequestRefused if
    it is too long.
    """
    size = len(text.encode())
    if size > _SHORT_BYTES:
        raise RequestRefused(
            f"{name}: expected at most {_SHORT_BYTES} bytes, got {size}",
            f"{name}: esperados no máximo {_SHORT_BYTES} bytes, recebidos {size}",
        )
    return text


def idempotency_key(request: Request) -> str | None:
    """Return the idempotency key of the request, if it has one. Requests with the same key have one
    effect.
    """
    found: str | None = request.headers.get("idempotency-key")
    if found is not None and not _KEY.fullmatch(found):
        raise RequestRefused(
            "Idempotency-Key: expected 1 to 128 letters, digits and signs of ASCII",
            "Idempotency-Key: esperados de 1 a 128 letras, dígitos e sinais ASCII",
        )
    return found


def correlation_id(request: Request) -> str:
    """Return the correlation id of the request, or a new one if it is missing or invalid."""
    given = request.headers.get("x-correlation-id", "")
    return given if _KEY.fullmatch(given) else str(uuid.uuid4())


async def publish(
    publisher: TopologyPublisher, message: Message, status: int = 202
) -> JSONResponse:
    """Publish a message and respond with its id.

    If the message may have been stored, the error contains the key that the client must send with a
    retry.
    """
    try:
        await publisher.send(message)
    except (ConfirmTimeout, PublishInterrupted, ConnectionLost) as error:
        _LOG.error("message %s may have been stored: %s", message.properties.message_id, error)
        key = f"`Idempotency-Key: {message.properties.message_id}`"
        raise RequestRefused(
            "the broker did not respond, so the message may have been stored. Send it again with the header"
            f" {key}, and it will only have one effect",
            "o broker não respondeu: talvez tenha sido armazenado. Envie de novo com o"
            f" cabeçalho {key}, assim só terá efeito uma vez",
            status=503,
            headers=_AGAIN,
        ) from error
    return JSONResponse({"id": message.properties.message_id}, status)


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it alone
    detail = error.detail
    if not isinstance(error, RequestRefused) and error.status_code in (404, 405):
        # This error was raised by the router.
        detail = (
            in_language("no such path", "caminho inexistente")
            if error.status_code == 404
            else in_language("method not allowed", "método não permitido")
        )
    return JSONResponse({"error": detail}, error.status_code, error.headers)


async def _unfit(request: Request, error: Exception) -> JSONResponse:
    """Respond to an unexpected error. Its text is only logged, because it may contain data of the
    client.
    """
    _LOG.warning("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    detail = in_language(
        "a value in the request cannot be stored: expected shorter, plain text",
        "um valor da requisição não pode ser armazenado: esperado texto simples e mais curto",
    )
    return JSONResponse({"error": detail}, 400)


async def _broker_failed(request: Request, error: Exception) -> JSONResponse:
    """Respond with a request to retry. The cause is only logged, without secrets."""
    _LOG.error("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    is_undeclared = isinstance(error, Returned | NotFound) or (
        isinstance(error, PublishRefused) and isinstance(error.__cause__, NotFound)
    )
    if is_undeclared:
        detail = in_language(
            "the broker has no exchange or queue for this message, and nothing was stored. Start the"
            " consumers or declare the topology with `hopback topology apply`, and try again",
            "o broker não tem exchange ou fila para isto; nada foi armazenado. Inicie os"
            " consumidores ou declare a topologia com `hopback topology apply` e tente de novo",
        )
    elif isinstance(error, ConnectionFailed):
        detail = in_language(
            "the broker cannot be reached and nothing was sent. Try again later",
            "o broker está inacessível; nada foi enviado, tente mais tarde",
        )
    elif isinstance(error, Nacked):
        detail = in_language(
            "the broker refused the message and nothing was stored. Try again later",
            "o broker recusou a mensagem; nada foi armazenado, tente mais tarde",
        )
    else:
        detail = in_language(
            "the broker did not respond, so the message may have been stored. Check this and try again",
            "o broker não respondeu: talvez tenha sido armazenado. Verifique e tente de novo",
        )
    return JSONResponse({"error": detail}, 503, _AGAIN)


async def _database_failed(request: Request, error: Exception) -> JSONResponse:
    """Respond to an error of the database. If the request makes a change, it is unknown whether the
    change was committed.
    """
    _LOG.error("%s %s: the database: %s", request.method, request.url.path, type(error).__name__)
    if request.method in ("GET", "HEAD"):
        detail = in_language(
            "the database cannot be reached. Try again later",
            "o banco de dados está inacessível; tente mais tarde",
        )
    else:
        detail = in_language(
            "the database did not respond, so the change may have been stored. Check this and try again",
            "o banco de dados não respondeu: a mudança talvez tenha sido gravada."
            " Verifique e tente de novo",
        )
    return JSONResponse({"error": detail}, 503, _AGAIN)


_LONGEST_WAIT_S = 5.0
"""How many seconds a request waits for the broker. This is less than the timeout of most clients.
"""
_AGAIN_S = 1.0
"""Seconds between two attempts to declare the topology. This is short compared with
`_LONGEST_WAIT_S`.
"""


class TopologyPublisher:
    """Publishes messages to a topology, which is declared as soon as the broker can be reached.

    This is an async context manager. If an existing object conflicts with the topology, or if the
    user is not allowed to declare it, an error is logged and the existing objects are used. The
    consumers log the details.
    """

    def __init__(self, broker: Broker, topology: Topology, *, name: str) -> None:
        self._broker = broker
        self._topology = topology
        self._name = name
        self._publisher = Publisher(broker, name=name, timeout=_LONGEST_WAIT_S)
        self._declared = asyncio.Event()
        self._declaring: asyncio.Task[None] | None = None
        self._trouble = "the broker is not connected yet"

    async def __aenter__(self) -> Self:
        self._publisher.start()
        self._declaring = asyncio.create_task(self._declare(), name=f"{self._name} declares")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._declaring is not None:
            self._declaring.cancel()
            await asyncio.gather(self._declaring, return_exceptions=True)
        await self._publisher.close()

    async def send(self, message: Message) -> None:
        """Publish a message and wait for the confirm. Raises the same errors as `Publisher.send`."""
        if not self._declared.is_set():
            try:
                async with asyncio.timeout(_LONGEST_WAIT_S):
                    await self._declared.wait()
            except TimeoutError:
                raise ConnectionFailed(f"nothing was sent: {self._trouble}") from None
        await self._publisher.send(message)

    async def check(self) -> str | None:
        """Return why messages cannot be published at the moment, or None if they can."""
        if not self._declared.is_set():
            return self._trouble
        state = self._publisher.state
        return None if state == "ready" else f"the connection is {state}"

    async def _declare(self) -> None:
        while not self._declared.is_set():
            try:
                connection = await self._broker.connect(f"{self._name} declares")
                try:
                    await declare(connection, self._topology)
                finally:
                    await connection.close()
                self._declared.set()
            except (TopologyError, AccessRefused) as error:
                _LOG.error("%s publishes to the existing objects: %s", self._name, error)
                self._declared.set()
            except (BrokerError, OSError) as error:
                self._trouble = str(error)
                await asyncio.sleep(_AGAIN_S)
