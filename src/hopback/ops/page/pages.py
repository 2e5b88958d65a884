"""Handle page requests: identify the visitor, check roles, read form fields and render templates."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote

from starlette.responses import HTMLResponse, RedirectResponse, Response

from hopback.errors import BadRequest
from hopback.ops.brokers.recent import NotReadYet
from hopback.ops.contract.codec import convert
from hopback.ops.contract.options import StructT, options_of
from hopback.ops.contract.requests import Target, TargetKind
from hopback.ops.http.auth import forbidden
from hopback.ops.http.path_route import PathRoute
from hopback.ops.http.permissions import may_begin, require
from hopback.ops.http.problems import Refused, refusal_of, trouble_title
from hopback.ops.http.services import NOBODY, CallerRequest, Services
from hopback.ops.page.rendering import visible

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jinja2 import Environment
    from starlette.requests import Request
    from starlette.routing import Route
    from starlette.types import ASGIApp

    from hopback.ops.contract.queue_rules import QueueRule
    from hopback.ops.contract.roles import Principal, Role

_SECTIONS = ("/jobs", "/alerts", "/topology", "/checks", "/audit", "/you")
# enough for all 10,000 messages of a session and the other fields of the form
_MOST_FIELDS = 11_000


@dataclass(frozen=True, slots=True)
class Visit(CallerRequest):
    """A page request of an authenticated visitor."""

    fields: list[tuple[str, str]]
    """The fields of the query, followed by those of the form."""
    templates: Environment

    @property
    def first_s(self) -> float | None:
        """Seconds to wait until a broker has been read for the first time, or None to wait without
        a limit.
        """
        return self.services.shared.first_read_s

    def field(self, name: str, default: str = "") -> str:
        """Return the last value of a field."""
        return next((value for key, value in reversed(self.fields) if key == name), default)

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for key, value in self.fields if key == name]

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**31) -> int:
        """Return a field as a number. Raises Refused if it is not a number or not within the limits."""
        text = self.field(name)
        if not text:
            return default
        # Check the number of digits before calling int(), which is slow for thousands of digits.
        if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise Refused(
                400,
                "bad-field",
                f"{name}: expected a number from {least} to {most}, got {_shorten(text)!r}.",
            )
        return int(text)

    def read(self, kind: type[StructT]) -> StructT:
        """Read a value whose options are fields of the form. Options with empty fields have their
        default.

        Only options (`options_of`) are read, and not for example the session of a Selection.
        """
        given = [
            (one, text)
            for one in options_of(kind)
            if one.kind in (int, float, str) and (text := self.field(one.json))
        ]
        for one, text in given:
            value = None
            with suppress(BadRequest):
                value = getattr(convert(kind, {one.json: text}, strict=False), one.name)
            if value is None or (one.least is not None and value < one.least):
                expected = one.bounds_text or "a shorter text"
                raise Refused(
                    400, "bad-field", f"{one.json}: expected {expected}, got {_shorten(text)!r}."
                )
        return convert(kind, {one.json: text for one, text in given}, strict=False)

    def page(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template within the layout."""
        text = self.templates.get_template(template).render(
            **frame_values(self.services, self.request, self.principal),
            told=[_NOTICES[code] for code in self.all("told")[:1] if code in _NOTICES],
            **values,
        )
        return HTMLResponse(text, status)


NOTICE_READ = "hopback_notice_read"
"""The cookie that is set when a visitor has dismissed the notice that no sign-in is configured."""


def frame_values(
    services: Services, request: Request, principal: Principal | None
) -> dict[str, Any]:
    """Return the values for the layout. `principal` is None if the visitor is not authenticated."""
    path = request.url.path
    own = path.removeprefix(services.prefix)
    section = next((each for each in _SECTIONS if own.startswith(each)), "/")
    return {
        "me": principal,
        "base": services.prefix,
        "switch": None if principal is None else broker_switch(services, principal, section),
        "broker": "" if principal is None else services.broker.address,
        "now": services.clock.now(),
        "section": section,
        "here": path,
        "notice_read": NOTICE_READ in request.cookies,
    }


Page: TypeAlias = "Callable[[Visit], Awaitable[Response]]"
_PageT = TypeVar("_PageT", bound=Page)


@dataclass(frozen=True, slots=True)
class PageRow:
    """A page or an action of a form. If `role` is None, all authenticated visitors can use it."""

    method: str
    path: str
    role: Role | None
    queues: tuple[QueueRule, ...]
    """The queues that a request affects. The visitor needs the role for each of them."""
    answer: Page
    reads_form: bool = True
    """Whether the fields are read in advance. An action that receives a file reads the body itself."""
    is_heavy: bool = False
    """Whether a request can need much time or memory. The number of such requests is limited."""
    reads_broker: bool = False
    """Whether a snapshot of the broker is required. If there is none yet, a page shows that it is
    being read.
    """


class Pages:
    """A list of pages in the order in which their paths are matched. `get` and `post` are decorators."""

    def __init__(self) -> None:
        self.rows: list[PageRow] = []

    def get(
        self, path: str, role: Role | None, *queues: QueueRule, **more: bool
    ) -> Callable[[_PageT], _PageT]:
        """Add a page. `more` contains other fields of its row."""
        return self._add("GET", path, role, queues, more)

    def post(
        self, path: str, role: Role | None, *queues: QueueRule, **more: bool
    ) -> Callable[[_PageT], _PageT]:
        """Add an action of a form."""
        return self._add("POST", path, role, queues, more)

    def _add(
        self,
        method: str,
        path: str,
        role: Role | None,
        queues: tuple[QueueRule, ...],
        more: dict[str, bool],
    ) -> Callable[[_PageT], _PageT]:
        def add(answer: _PageT) -> _PageT:
            self.rows.append(PageRow(method, path, role, queues, answer, **more))
            return answer

        return add

    def routes(self, services: Services, templates: Environment) -> list[Route]:
        """Create the routes of the pages."""
        return [
            PathRoute(
                services.prefix + row.path,
                partial(_respond, services, templates, row),
                methods=[row.method],
            )
            for row in self.rows
        ]


async def release_look(visit: Visit, queue: str) -> None:
    """End the browse session named in the form, so that its messages are requeued."""
    session = visit.field("release")
    operations = visit.operations
    if any(view.id == session and view.queue == queue for view in operations.sessions()):
        await operations.return_messages(session)


async def _respond(
    services: Services,
    templates: Environment,
    row: PageRow,
    request: Request,
) -> ASGIApp:
    principal, end = NOBODY, _do_nothing
    try:
        found = await services.shared.gate.identify(request)
        if found is None:
            here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            onward = here if request.method == "GET" else "/"
            return see_other(f"/login?next={quote(onward, safe='')}")
        principal = services.caller_here(found)
        services.shared.gate.take_turn(principal.id)
        path = request.url.path.removeprefix(services.prefix)
        # Visitors without a role for this broker can see their account and the lists for all
        # brokers.
        over_all = services.spans_brokers and principal.elsewhere
        open_pages = ("/you", "/", "/live", "/alive") if over_all else ("/you",)
        if principal.role is None and path not in open_pages:
            where = f" for broker {services.name!r}" if principal.elsewhere else ""
            raise forbidden(f"You are signed in, but have no role{where}. Ask an admin for one.")
        if not may_begin(row.role, row.queues, principal, request.path_params):
            raise forbidden(f"Expected the role {row.role} for {row.queues[0].text}.")
        fields = list(request.query_params.multi_items())
        if request.method == "POST" and row.reads_form:
            fields += await form_fields(request)
        visit = Visit(request, services, principal, request.path_params, fields, templates)
        await require(row.role, row.queues, visit)
        if row.is_heavy:
            end = services.shared.heavy.begin(principal.id)
        response = await _answer(visit, row)
        onward = response.headers.get("location", "")
        if not onward.startswith(f"{services.prefix}/") and onward.startswith("/"):
            # Redirect to pages of the same broker.
            response.headers["location"] = services.prefix + onward
        return services.shared.heavy.limit(response, end) if row.is_heavy else response
    except BaseException as error:
        end()
        if not isinstance(error, Exception):
            raise
        refused = refusal_of(error, request)
        if refused is None:
            raise
        if request.method != "GET" and refused.status in (401, 403):
            await services.record_denial(principal, request, refused, "")
        return problem_page(services, templates, request, principal, refused)


async def _answer(visit: Visit, row: PageRow) -> Response:
    """Return the page. Until the broker has been read, return a page that reloads every second."""
    try:
        if row.reads_broker:
            await visit.services.broker.wait_for_snapshot(visit.first_s)
        return await row.answer(visit)
    except NotReadYet:
        pass
    error = visit.services.recent.sweep.last.error
    page = visit.page(
        "reading.html",
        trouble="" if error is None else str(error),
        trouble_title=trouble_title(error),
    )
    page.headers["HX-Refresh"] = "true"  # do not insert this page if only a part was requested
    return page


def _do_nothing() -> None:
    """Used for requests that are not heavy."""


@dataclass(frozen=True, slots=True)
class BrokerSwitch:
    """The broker menu, with the current broker and links to the same section of all brokers."""

    here: str
    links: tuple[tuple[str, str], ...]


def broker_switch(services: Services, principal: Principal, section: str) -> BrokerSwitch | None:
    """Return the menu of brokers that the visitor can see, or None if there is only one broker."""
    if len(services.shared.brokers) < 2:
        return None
    return BrokerSwitch(
        "" if services.spans_brokers and section == "/" else services.name,
        tuple(
            (each.name, f"{each.prefix}{section}")
            for each, _ in services.shared.visible_to(principal)
        ),
    )


def problem_page(
    services: Services,
    templates: Environment,
    request: Request,
    principal: Principal,
    refused: Refused,
) -> Response:
    """Render an error page with helpful links."""
    known = principal.grants != () or principal.kind != "nobody"
    own = request.url.path.removeprefix(services.prefix)
    is_look_over = own.startswith("/sessions/") and refused.status == 404
    words = {
        "title": _CODE_TITLES.get(refused.code) or _TITLES.get(refused.status, "Request failed"),
        "detail": refused.detail,
        "remedy": str(refused.more.get("remedy", "")),
    }
    if is_look_over:
        words = {
            "title": "Browse session ended",
            "detail": "Its messages were requeued in order.",
            "remedy": "A session ends when it expires or is released, when a job takes its messages, and"
            " when the service restarts.",
        }
    # Put the most helpful link first.
    job, queue = refused.more.get("job"), request.query_params.get("queue", "")
    ways = [("/", "Dead letters")]
    if isinstance(job, str):
        ways.insert(0, (job.removeprefix("/admin/dlq"), "Show the job"))
    # The queue is still in the URL of the ended session.
    if is_look_over and queue:
        ways.insert(0, (f"/queues/{quote(queue, safe='')}#look", f"Look at {visible(queue)} again"))
    text = templates.get_template("problem.html").render(
        **frame_values(services, request, principal if known else None),
        told=[],
        **words,
        ways=ways,
        correlation=request.state.correlation,
    )
    return HTMLResponse(text, refused.status, refused.headers)


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


# Messages shown after an action. URLs only contain their codes, so that they cannot inject text.
_NOTICES = {
    "released": "Messages requeued in order.",
    "copy-sent": "Changed copy sent. This message stays in the queue.",
    "surveyed": "Survey finished.",
    "limit-restored": "Delivery limit restored.",
    "key-deleted": "Key revoked.",
    "filter-saved": "Filter saved for all users of this queue.",
    "signed-out": "Signed out.",
}
_TITLES = {
    400: "Invalid request",
    403: "Not allowed",
    404: "Not found",
    409: "Conflict",
    422: "Request refused",
    429: "Too many requests",
    503: "The broker does not answer",
}
_CODE_TITLES = {
    "broker-refused": "The broker refused",
    "broker-failed": "The broker reported an error",
    "database-damaged": "The database is damaged",
    "database-unavailable": "The database does not answer",
    "management-refused": "The management API refused",
    "management-unavailable": "The management API does not answer",
}


async def form_fields(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form. Raises Refused if they cannot be read."""
    raw = await request.body()
    try:
        return parse_qsl(
            raw.decode("utf-8"), keep_blank_values=True, max_num_fields=_MOST_FIELDS,
            errors="strict",
        )  # fmt: skip
    except ValueError as error:
        raise Refused(400, "bad-form", "Expected the fields of a form.") from error


def form_target(kind: str, queue: str) -> Target:
    """Return the target selected in a form. The default is the target of the design."""
    if kind == TargetKind.QUEUE.value:
        return Target(TargetKind.QUEUE, "", queue)
    return Target(TargetKind(kind)) if kind in set(TargetKind) else Target()


def own_page(path: str) -> str:
    """Return the path if it is on this site, and `/` otherwise."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if plain else "/"


def see_other(url: str) -> Response:
    """Redirect with status 303."""
    return RedirectResponse(url, 303)
