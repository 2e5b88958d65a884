"""Route page requests: identify the visitor, check roles, read fields, and render HTML or an error page."""

from __future__ import annotations

import asyncio
import re
import secrets
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
from hopback.ops.contract.queue_rules import NO_QUEUE, QueueRule
from hopback.ops.contract.requests import Target, TargetKind
from hopback.ops.http.auth import forbidden
from hopback.ops.http.events import AT_ONCE_S, LongWork, page_work_events
from hopback.ops.http.path_route import PathRoute
from hopback.ops.http.permissions import may_begin, require
from hopback.ops.http.problems import Refused, refusal_of, trouble_title
from hopback.ops.http.services import NOBODY, CallerRequest, Services
from hopback.ops.page.rendering import visible

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from jinja2 import Environment
    from starlette.requests import Request
    from starlette.routing import Route
    from starlette.types import ASGIApp

    from hopback.ops.contract.roles import Principal, Role
    from hopback.ops.contract.values import OnProgress

_SECTIONS = ("/jobs", "/alerts", "/topology", "/checks", "/audit", "/you")
_MOST_FIELDS = 11_000  # all 10,000 messages of a session ticked, and the other fields of the form


@dataclass(frozen=True, slots=True)
class Visit(CallerRequest):
    """One page request of an authenticated visitor."""

    fields: list[tuple[str, str]]
    """Fields of the query, then of the form."""
    templates: Environment

    @property
    def first_s(self) -> float | None:
        """Longest wait for the first reading of a broker, in seconds. None waits until it was read."""
        return self.services.shared.first_read_s

    def field(self, name: str, default: str = "") -> str:
        """Return the last value of a field."""
        return next((value for key, value in reversed(self.fields) if key == name), default)

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return [value for key, value in self.fields if key == name]

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**31) -> int:
        """Return a field as a number. Raise Refused if it is not a number or is out of bounds."""
        text = self.field(name)
        if not text:
            return default
        # Limit the digits before int(), which is slow for thousands of digits and then fails.
        if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise Refused(
                400,
                "bad-field",
                f"{name}: expected a number from {least} to {most}, got {_shorten(text)!r}.",
            )
        return int(text)

    def read(self, kind: type[StructT]) -> StructT:
        """Return a value whose options are fields of the form. An empty field has its default.

        Attributes that are not options (`options_of`) are not read, for example the session of a Selection.
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
        """Render a template in the layout."""
        text = self.templates.get_template(template).render(
            **frame_values(self.services, self.request, self.principal),
            told=[_NOTICES[code] for code in self.all("told")[:1] if code in _NOTICES],
            **values,
        )
        return HTMLResponse(text, status)


NOTICE_READ = "hopback_notice_read"
"""Cookie of a visitor who has dismissed the notice that no sign-in is configured."""


def frame_values(
    services: Services, request: Request, principal: Principal | None
) -> dict[str, Any]:
    """Return the values of the layout. `principal` is None for an unauthenticated visitor."""
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
    """A page or the action of a form. `role` None: every authenticated visitor may see it."""

    method: str
    path: str
    role: Role | None
    queues: tuple[QueueRule, ...]
    """The queues that a request touches. The visitor needs the role for each queue."""
    answer: Page
    reads_form: bool = True
    """Its fields are read before it answers. An action that receives a file reads the body itself."""
    is_heavy: bool = False
    """It may take much time or memory. The number of such requests is limited per caller."""
    reads_broker: bool = False
    """It needs a snapshot of the broker. Before the first one it shows that the broker is being read."""


class Pages:
    """Pages in the order in which they are matched. `get` and `post` decorate their functions."""

    def __init__(self) -> None:
        self.rows: list[PageRow] = []

    def get(
        self, path: str, role: Role | None, *queues: QueueRule, **more: bool
    ) -> Callable[[_PageT], _PageT]:
        """Add a page. `more` are further fields of its row."""
        return self._add("GET", path, role, queues, more)

    def post(
        self, path: str, role: Role | None, *queues: QueueRule, **more: bool
    ) -> Callable[[_PageT], _PageT]:
        """Add the action of a form."""
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
        """Return the routes of the pages."""
        return [
            PathRoute(
                services.prefix + row.path,
                partial(_respond, services, templates, row),
                methods=[row.method],
            )
            for row in self.rows
        ]


WORK_PAGES = Pages()
"""Pages that show the progress of a slow request."""

_MOST_WAITING = 4
"""Slow requests of one visitor at a time. Each may hold messages. Further ones are refused."""
_UNATTENDED_S = 20.0
"""If the waiting page sends no request for this number of seconds, it counts as closed and its work is ended.
The page asks every 2 s.
"""


class PageWork:
    """A slow request of a visitor. `words` describe it, `back` is the page of its form.

    It ends if the waiting page stops asking for it. Then `forget` is called.
    """

    def __init__(
        self,
        work: LongWork[Response],
        by: str,
        words: str,
        back: str,
        forget: Callable[[], object],
    ) -> None:
        self.work = work
        self.by = by
        self.words = words
        self.back = back
        self._forget = forget
        self._asked_at = asyncio.get_running_loop().time()
        self._watching = asyncio.create_task(self._watch(), name="long work of a page")

    def attend(self) -> None:
        """Record that the page still waits."""
        self._asked_at = asyncio.get_running_loop().time()

    async def end(self) -> None:
        """End the work after its result has been fetched, or cancel it and requeue its messages."""
        self._watching.cancel()
        self._forget()
        await self.work.end()

    async def _watch(self) -> None:
        loop, left = asyncio.get_running_loop(), _UNATTENDED_S
        while left > 0:
            await asyncio.sleep(left)
            left = self._asked_at + _UNATTENDED_S - loop.time()
        self._forget()
        await self.work.end()


async def in_time(
    visit: Visit,
    work: Callable[[OnProgress], Coroutine[Any, Any, Response]],
    words: str,
    back: str,
) -> Response:
    """Return the response if it is ready immediately, otherwise redirect to a page that shows the
    progress.
    """
    known, own = visit.services.working, visit.principal.id
    if sum(each.by == own for each in known.values()) >= _MOST_WAITING:
        raise Refused(
            429,
            "too-many-heavy-requests",
            f"You have {_MOST_WAITING} running requests. Wait until one ends, or cancel one.",
        )
    begun = LongWork(work)
    if await begun.wait(visit.request, AT_ONCE_S):
        return begun.task.result()
    name = secrets.token_hex(8)
    forget = partial(known.pop, name, None)
    known[name] = PageWork(begun, own, words, back, forget)
    return see_other(f"/working/{name}")


def _find_work(visit: Visit) -> PageWork:
    """Return the slow request in the path. Refused if it belongs to another visitor."""
    found = visit.services.working.get(visit.path["work"])
    if found is None or found.by != visit.principal.id:
        raise Refused(404, "not-found", "This operation has finished or was cancelled.")
    found.attend()
    return found


async def release_look(visit: Visit, queue: str) -> None:
    """End the browse session that the form names, so that its messages are in the queue again."""
    session = visit.field("release")
    operations = visit.operations
    if any(view.id == session and view.queue == queue for view in operations.sessions()):
        await operations.return_messages(session)


@WORK_PAGES.get("/working/{work}", None, NO_QUEUE)
async def _show_work(visit: Visit) -> Response:
    """Show the progress of a slow request. When it has ended, return its response once."""
    waiting = _find_work(visit)
    if waiting.work.task.done():
        await waiting.end()
        return waiting.work.task.result()
    return visit.page("working.html", waiting=waiting, name=visit.path["work"])


@WORK_PAGES.get("/working/{work}/events", None, NO_QUEUE)
async def _stream_work(visit: Visit) -> Response:
    waiting = _find_work(visit)
    events = page_work_events(waiting.work)
    return visit.services.shared.streams.open(events, visit.principal, on_event=waiting.attend)


@WORK_PAGES.post("/working/{work}/cancel", None, NO_QUEUE)
async def _cancel_work(visit: Visit) -> Response:
    waiting = _find_work(visit)
    await waiting.end()
    return see_other(waiting.back)


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
        # A visitor without a role for this broker sees the own account, and the lists over all brokers.
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
            # Redirects stay at the broker of the page.
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
    """Return the page, or one that reloads itself every second until the broker was read."""
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
    page.headers["HX-Refresh"] = "true"  # a part of a page cannot be replaced by this one
    return page


def _do_nothing() -> None:
    """End a request that is not heavy."""


@dataclass(frozen=True, slots=True)
class BrokerSwitch:
    """The broker menu: the name of the current broker, and links to the same section of every broker."""

    here: str
    links: tuple[tuple[str, str], ...]


def broker_switch(services: Services, principal: Principal, section: str) -> BrokerSwitch | None:
    """Return the menu of the brokers that the visitor may see. None if there is only one broker."""
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
    """Render an error page with links that help to continue."""
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
    # The most helpful link comes first.
    job, queue = refused.more.get("job"), request.query_params.get("queue", "")
    ways = [("/", "Dead letters")]
    if isinstance(job, str):
        ways.insert(0, (job.removeprefix("/admin/dlq"), "Show the job"))
    # The URL of an ended session still contains the queue.
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


# Messages after an action, by code. A link contains only the code, so a forged one cannot add a text.
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
    """Return the fields of a form. Refused if they cannot be read."""
    raw = await request.body()
    try:
        return parse_qsl(
            raw.decode("utf-8"), keep_blank_values=True, max_num_fields=_MOST_FIELDS,
            errors="strict",
        )  # fmt: skip
    except ValueError as error:
        raise Refused(400, "bad-form", "Expected the fields of a form.") from error


def form_target(kind: str, queue: str) -> Target:
    """Return the target of a form. The default is the design's target."""
    if kind == TargetKind.QUEUE.value:
        return Target(TargetKind.QUEUE, "", queue)
    return Target(TargetKind(kind)) if kind in set(TargetKind) else Target()


def own_page(path: str) -> str:
    """Return the path if it is on this site, otherwise `/`."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if plain else "/"


def see_other(url: str) -> Response:
    """Redirect with status 303."""
    return RedirectResponse(url, 303)
