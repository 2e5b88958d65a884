"""The API as a table: each row says who may call, what is asked, what is answered. One dispatcher.

The OpenAPI document is made from the same rows, so it cannot say anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from hopback.admin.auth import address_of, forbidden, unauthorized
from hopback.admin.problems import Refused, problem_response, refusal_of
from hopback.admin.roles import Role
from hopback.deadletters.codec import encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.requests import Request

    from hopback.admin.auth import Gate
    from hopback.admin.roles import Principal
    from hopback.admin.services import Services

__all__ = [
    "JSON",
    "Answer",
    "Call",
    "Empty",
    "Endpoint",
    "Reach",
    "admitted",
    "api_routes",
    "decoded",
]

JSON = "application/json"
"""The media type of most answers."""

_UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing is asked, or nothing is answered."""


QueryT = TypeVar("QueryT")
BodyT = TypeVar("BodyT")


class Reach(Enum):
    """For which queues the role is needed."""

    QUEUE = "the queue in the path"
    SOMEWHERE = "any queue; the answer holds only what may be seen"
    MAP = "any queue; the answer is the topology of the whole broker"
    EVERYWHERE = "all queues"


@dataclass(frozen=True, slots=True)
class Call(Generic[QueryT, BodyT]):
    """One request that was let in, with everything it says."""

    request: Request
    services: Services
    principal: Principal
    path: dict[str, str]
    query: QueryT
    body: BodyT

    @property
    def correlation(self) -> str:
        """The correlation id of the request."""
        return str(self.request.state.correlation)

    def need(self, role: Role, queue: str) -> None:
        """Refuse unless the caller has the role for that queue."""
        if not self.principal.allows(role, queue):
            raise forbidden(f"Expected the role {role} for queue {queue!r}.")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of the API. `role` None: whoever is known may call; `public`: anybody."""

    method: str
    path: str
    name: str
    summary: str
    call: Callable[[Any], Awaitable[object]]
    role: Role | None = None
    reach: Reach = Reach.SOMEWHERE
    query: type = Empty
    body: type | None = None
    body_optional: bool = False
    answer: Any = None
    status: int = 200
    errors: tuple[int, ...] = ()
    media: tuple[str, ...] = (JSON,)
    headers: tuple[tuple[str, str], ...] = ()
    """Headers that a caller may send, each with what it is for."""
    further: tuple[tuple[int, Any], ...] = ()
    """Other good answers: their statuses and what they hold."""
    public: bool = False

    @property
    def changes(self) -> bool:
        """Whether it changes something."""
        return self.method in _UNSAFE


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with a status or headers of its own."""

    value: object
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


def api_routes(endpoints: Iterable[Endpoint], services: Services) -> list[Route]:
    """The rows as routes."""
    rows: dict[str, dict[str, Endpoint]] = {}
    for each in endpoints:
        rows.setdefault(each.path, {})[each.method] = each
    return [_route(path, methods, services) for path, methods in rows.items()]


def _route(path: str, methods: dict[str, Endpoint], services: Services) -> Route:
    async def answer(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        try:
            return await _answered(methods[method], request, services)
        except Exception as error:
            refused = refusal_of(error)
            if refused is None:
                raise
            return problem_response(refused, request.url.path, request.state.correlation)

    return Route(path, answer, methods=list(methods))


async def _answered(endpoint: Endpoint, request: Request, services: Services) -> Response:
    params = {name: decoded(value) for name, value in request.path_params.items()}
    principal = await _let_in(endpoint, request, services, params)
    call: Call[Any, Any] = Call(
        request,
        services,
        principal,
        params,
        _query(endpoint.query, request),
        await _body(endpoint, request),
    )
    try:
        return _response(endpoint, await endpoint.call(call))
    except Refused as refused:
        if refused.status == 403 and endpoint.changes:
            await services.denied(principal, request, refused, params.get("queue", ""))
        raise


async def _let_in(
    endpoint: Endpoint, request: Request, services: Services, params: dict[str, str]
) -> Principal:
    """Who asks, if they may; a refused change is written down."""
    gate: Gate = services.gate
    if endpoint.public:
        gate.take_turn(address_of(request))
        return services.nobody
    principal = services.nobody
    try:
        found = await gate.identify(request)
        if found is None:
            raise unauthorized("Missing Authorization header.")
        principal = found
        gate.take_turn(principal.id)
        _permit(endpoint, principal, params.get("queue"))
    except Refused as refused:
        if endpoint.changes and refused.status in (401, 403):
            await services.denied(principal, request, refused, params.get("queue", ""))
        raise
    return principal


async def admitted(services: Services, request: Request) -> Principal:
    """Who asks, if they are an admin of the queue in the path, or of all; a refused change is noted.

    The names in the path are decoded already: decoding once more would ask about another queue.
    """
    principal, queue = services.nobody, request.path_params.get("queue", "")
    try:
        found = await services.gate.identify(request)
        if found is None:
            raise unauthorized("Missing Authorization header.")
        principal = found
        services.gate.take_turn(principal.id)
        if not (
            principal.allows(Role.ADMIN, queue)
            if queue
            else principal.allows_everywhere(Role.ADMIN)
        ):
            raise forbidden()
    except Refused as refused:
        if request.method == "POST" and refused.status in (401, 403):
            await services.denied(principal, request, refused, queue)
        raise
    return principal


def _permit(endpoint: Endpoint, principal: Principal, queue: str | None) -> None:
    role = endpoint.role
    if role is None:
        return
    match endpoint.reach:
        case Reach.QUEUE:
            allowed = queue is not None and principal.allows(role, queue)
        case Reach.EVERYWHERE:
            allowed = principal.allows_everywhere(role)
        case Reach.SOMEWHERE | Reach.MAP:
            allowed = principal.allows_somewhere(role)
    if not allowed:
        raise forbidden()


def decoded(value: str) -> str:
    """A part of the path as it was meant; it may hold an encoded slash."""
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise Refused(400, "bad-path", "The path: expected UTF-8, percent-encoded.") from None


def _query(kind: type, request: Request) -> Any:
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(400, "bad-query", f"The query: {error}.") from error


async def _body(endpoint: Endpoint, request: Request) -> Any:
    kind = endpoint.body
    if kind is None:
        return None
    raw = await request.body()
    if not raw and endpoint.body_optional:
        return kind()
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise Refused(415, "not-json", f"The body: expected Content-Type {JSON}.")
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid", f"The body: {error}.") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Refused(400, "bad-json", f"The body: expected JSON; {error}.") from error


def _response(endpoint: Endpoint, found: object) -> Response:
    if isinstance(found, Response):
        return found
    answer = found if isinstance(found, Answer) else Answer(found)
    status = answer.status or endpoint.status
    content = b"" if answer.value is None else encode(answer.value)
    media = None if answer.value is None else JSON
    return Response(content, status, dict(answer.headers), media)
