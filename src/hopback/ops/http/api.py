"""Dispatch the requests of the API to the functions in the endpoint tables.

`contract.endpoints` contains the rows that the HTTP client also uses. The other rows are next to
the functions that implement them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from starlette.responses import Response

from hopback.errors import BadRequest
from hopback.ops.contract.codec import convert, decode, encode
from hopback.ops.contract.endpoints import EVENTS, JSON, ApiEndpoint
from hopback.ops.http.auth import forbidden, unauthorized
from hopback.ops.http.events import AT_ONCE_S, LongWork
from hopback.ops.http.path_route import PathRoute
from hopback.ops.http.permissions import may_begin, require
from hopback.ops.http.problems import Refused, internal_error, log_refusal, problem_response
from hopback.ops.http.services import NOBODY, CallerRequest, Services
from hopback.ops.http.turns import address_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

    from starlette.requests import Request
    from starlette.routing import Route
    from starlette.types import ASGIApp

    from hopback.ops.contract.queue_rules import QueueRule
    from hopback.ops.contract.roles import Principal, Role
    from hopback.ops.contract.values import OnProgress

_LOG = logging.getLogger("hopback.ops.http")
_UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})


QueryT = TypeVar("QueryT")
BodyT = TypeVar("BodyT")


@dataclass(frozen=True, slots=True)
class Call(CallerRequest, Generic[QueryT, BodyT]):
    """An authorised request with its query and body."""

    query: QueryT
    body: BodyT
    on_progress: OnProgress | None = None
    """Receives the progress of long requests."""

    @property
    def correlation(self) -> str:
        """The correlation id of the request."""
        return str(self.request.state.correlation)

    def refusal(self, error: BaseException) -> Response:
        """Return the response for an error in a stream.

        The error is logged here, because the service has already started the response.
        """
        refused = None
        if isinstance(error, Exception):
            refused = self.services.find_refusal(error, self.request)
        if refused is None:
            _LOG.error("request %s failed", self.correlation, exc_info=error)
        else:
            log_refusal(self.request.scope, refused.status)
        path = self.request.url.path
        return problem_response(refused or internal_error(), path, self.correlation)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredEndpoint(ApiEndpoint):
    """An endpoint and the function that implements it."""

    call: Callable[[Any], Awaitable[object]]
    summary: str


_Answers = TypeVar("_Answers", bound="Callable[[Any], Awaitable[object]]")


class ApiTable(list[AnsweredEndpoint]):
    """API endpoints and the functions that implement them, registered by decorators."""

    def answer(self, endpoint: ApiEndpoint) -> Callable[[_Answers], _Answers]:
        """Implement an endpoint of the shared table. The docstring of the function becomes its summary."""

        def add(call: _Answers) -> _Answers:
            row = {each.name: getattr(endpoint, each.name) for each in fields(endpoint)}
            self.append(AnsweredEndpoint(**row, call=call, summary=_summary(call)))
            return call

        return add

    def row(
        self,
        method: str,
        path: str,
        role: Role | None,
        *queues: QueueRule,
        **more: Any,
    ) -> Callable[[_Answers], _Answers]:
        """Implement an endpoint that the client does not need. It is named after the function."""

        def add(call: _Answers) -> _Answers:
            first, *words = call.__name__.strip("_").split("_")
            name = first + "".join(map(str.title, words))
            return self.answer(ApiEndpoint(name, method, path, role, queues, **more))(call)

        return add

    def complete(self, endpoints: Sequence[ApiEndpoint]) -> ApiTable:
        """Implement all other endpoints by calling their operations, and sort the table."""
        answered = {row.name for row in self}
        for endpoint in endpoints:
            if endpoint.name not in answered:
                self.answer(endpoint)(_operation_caller(endpoint))
        order = {endpoint.name: place for place, endpoint in enumerate(endpoints)}
        self.sort(key=lambda row: order.get(row.name, len(order)))
        return self


def _operation_caller(endpoint: ApiEndpoint) -> Callable[[Any], Awaitable[object]]:
    async def call_operation(call: Call[Any, Any]) -> object:
        whole, named = endpoint.write_arguments(call.query, call.body)
        path = (call.path[name] for name in endpoint.path_names)
        found = await attrgetter(endpoint.operation)(call.operations)(*path, *whole, **named)
        return endpoint.answer(**{endpoint.result: found}) if endpoint.result else found

    call_operation.__doc__ = endpoint.interface.__doc__
    return call_operation


def _summary(call: Callable[..., object]) -> str:
    first, _, _ = (call.__doc__ or "").partition("\n\n")
    return " ".join(first.split())


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A response whose status differs from that of its endpoint."""

    value: object
    status: int


def api_routes(endpoints: Iterable[AnsweredEndpoint], services: Services) -> list[Route]:
    rows: dict[str, dict[str, AnsweredEndpoint]] = {}
    for each in endpoints:
        rows.setdefault(each.path, {})[each.method] = each
    return [_route(services.prefix + path, methods, services) for path, methods in rows.items()]


def _route(path: str, methods: dict[str, AnsweredEndpoint], services: Services) -> Route:
    async def answer(request: Request) -> ASGIApp:
        method = "GET" if request.method == "HEAD" else request.method
        try:
            return await _admit_and_answer(methods[method], request, services)
        except Exception as error:
            refused = services.find_refusal(error, request)
            if refused is None:
                raise
            return problem_response(refused, request.url.path, request.state.correlation)

    # Starlette only calls the returned object, so any ASGI application can be returned.
    return PathRoute(path, cast("Any", answer), methods=list(methods))


async def _admit_and_answer(
    endpoint: AnsweredEndpoint, request: Request, services: Services
) -> ASGIApp:
    if endpoint.public:
        services.shared.gate.take_turn(address_of(request))
        principal = NOBODY
    else:
        principal = await _admit(endpoint, request, services)
    if not endpoint.is_heavy:
        return await _answer(endpoint, request, services, principal)
    end = services.shared.heavy.begin(principal.id)
    try:
        response = await _answer(endpoint, request, services, principal)
    except BaseException:
        end()
        raise
    return services.shared.heavy.limit(response, end)


async def _answer(
    endpoint: AnsweredEndpoint, request: Request, services: Services, principal: Principal
) -> Response:
    params = request.path_params
    try:
        query: Any = convert(endpoint.query, dict(request.query_params), strict=False)
    except BadRequest as error:
        raise Refused(400, "bad-query", f"The query: {error}.") from error
    body = await _body(endpoint, request)
    call: Call[Any, Any] = Call(request, services, principal, params, query, body)
    if not endpoint.takes_long:
        return await _check_and_answer(endpoint, call)
    # Send the response directly if it is ready soon. Otherwise, clients that accept events receive
    # the progress.
    work = LongWork(lambda tell: _check_and_answer(endpoint, replace(call, on_progress=tell)))
    streams = EVENTS in request.headers.get("accept", "")
    if await work.wait(request, AT_ONCE_S if streams else None):
        return work.task.result()
    try:
        return services.shared.streams.open(_work_events(work, call), principal, work.end)
    except Refused:
        await work.end()
        raise


async def _work_events(
    work: LongWork[Response], call: Call[Any, Any]
) -> AsyncGenerator[bytes, None]:
    """Yield progress events, then an `answer` event with the status, location and body of the response."""
    async for event in work.events():
        yield event
    error = work.task.exception()
    yield answer_event(work.task.result() if error is None else call.refusal(error))


def answer_event(answer: Response) -> bytes:
    """Convert a response to the last event of a long request."""
    # JSON is encoded without line breaks, so it fits in one line of an event.
    said = (
        (b'"location":%s,' % encode(answer.headers["location"]))
        if "location" in answer.headers
        else b""
    )
    body = bytes(answer.body) or b"null"
    return b'event: answer\ndata: {"status":%d,%s"body":%s}\n\n' % (answer.status_code, said, body)


async def _check_and_answer(endpoint: AnsweredEndpoint, call: Call[Any, Any]) -> Response:
    """Check the permissions for all queues of a request and answer it."""
    request, services = call.request, call.services
    try:
        await require(endpoint.role, endpoint.queues, call)
        found = await endpoint.call(call)
    except Refused as refused:
        if refused.status == 403 and request.method in _UNSAFE:
            await services.record_denial(
                call.principal, request, refused, call.path.get("queue", "")
            )
        raise
    if isinstance(found, Response):
        return found
    answer = found if isinstance(found, ApiAnswer) else ApiAnswer(found, endpoint.status)
    if answer.value is None:
        return Response(b"", answer.status)
    headers = {}
    if endpoint.location and answer.status == endpoint.status:
        created: Any = answer.value
        headers["Location"] = services.prefix + endpoint.location.format(id=created.id)
    return Response(encode(services.add_prefix(answer.value)), answer.status, headers, JSON)


async def _admit(endpoint: AnsweredEndpoint, request: Request, services: Services) -> Principal:
    """Identify the caller of a request.

    Raises Refused if the request is not permitted. If it would have changed something, the refusal
    is recorded in the audit.
    """
    principal = NOBODY
    try:
        found = await services.shared.gate.identify(request)
        if found is None:
            raise unauthorized("Missing Authorization header.")
        principal = services.caller_here(found)
        services.shared.gate.take_turn(principal.id)
        if not may_begin(endpoint.role, endpoint.queues, principal, request.path_params):
            raise forbidden()
    except Refused as refused:
        if request.method in _UNSAFE and refused.status in (401, 403):
            queue = request.path_params.get("queue", "")
            await services.record_denial(principal, request, refused, queue)
        raise
    return principal


async def _body(endpoint: AnsweredEndpoint, request: Request) -> Any:
    kind = endpoint.body
    if kind is None:
        return None
    raw = await request.body()
    if not raw and endpoint.body_optional:
        return kind()
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise Refused(415, "not-json", f"The body: expected Content-Type {JSON}.")
    try:
        said = decode(raw)
    except ValueError as error:
        raise Refused(400, "bad-json", f"The body: expected JSON, {error}.") from error
    try:
        return convert(kind, said)
    except BadRequest as error:
        raise Refused(422, "invalid", f"The body: {error}.") from error
