"""Who asks, in the API and on the page: me, keys, the audit, signing in; also probes and metrics."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from msgspec import Meta, Struct, field
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from hopback import __version__
from hopback.errors import HopbackError
from hopback.ops.contract import endpoints
from hopback.ops.contract.queue_rules import EVERY_QUEUE, NO_QUEUE
from hopback.ops.contract.requests import AuditQuery
from hopback.ops.contract.roles import EVERYTHING, Role
from hopback.ops.contract.values import AuditList, Moment
from hopback.ops.http.api import ApiAnswer, ApiTable, Call
from hopback.ops.http.keys import ApiKey, new_key
from hopback.ops.http.problems import Refused, trouble_title
from hopback.ops.http.services import NOBODY
from hopback.ops.http.session_cookies import cookie_name
from hopback.ops.http.turns import address_of
from hopback.ops.oidc.settings import CALLBACK
from hopback.ops.page.pages import (
    NOTICE_READ,
    Pages,
    form_fields,
    frame_values,
    own_page,
    see_other,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jinja2 import Environment
    from starlette.requests import Request

    from hopback.ops.contract.endpoints import Empty
    from hopback.ops.contract.roles import Principal
    from hopback.ops.http.auth import Gate
    from hopback.ops.http.services import Services
    from hopback.ops.page.pages import Visit

_Name = Annotated[str, Meta(max_length=255)]
_DAY_S = 86_400.0  # seconds


ACCESS = ApiTable()
"""The rows of this part, each above what answers it."""


class GrantAnswer(Struct, frozen=True, rename="camel"):
    """A role, and the queues it holds for."""

    role: Role
    queues: list[str]


class MeAnswer(Struct, frozen=True, rename="camel"):
    """Who the caller is here."""

    id: str
    name: str
    kind: str
    role: Role | None
    grants: list[GrantAnswer]
    until: Moment | None


class NewKey(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A key to be made."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    role: Role
    queues: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=255)]], Meta(min_length=1, max_length=50)
    ] = field(default_factory=lambda: ["*"])
    days: Annotated[float, Meta(gt=0, le=3650)] = 90.0


class KeyAnswer(Struct, frozen=True, rename="camel"):
    """A key without its secret."""

    id: str
    name: str
    role: Role
    queues: list[str]
    expires_at: Moment | None
    made_by: str
    made_at: Moment | None


class MadeKey(Struct, frozen=True, rename="camel"):
    """A new key with its secret, which is shown this once."""

    key: KeyAnswer
    secret: str


class KeyList(Struct, frozen=True, rename="camel"):
    """The keys."""

    items: list[KeyAnswer]
    total: int


class ReadyAnswer(Struct, frozen=True, rename="camel"):
    """Whether the service can do its work; strangers get no address and no error text."""

    ready: bool
    version: str
    broker: str
    reason: str


@ACCESS.row("GET", "/admin/me", None, NO_QUEUE, answer=MeAnswer)
async def _show_me(call: Call[Empty, None]) -> MeAnswer:
    """Who the caller is here."""
    me = call.principal
    grants = [GrantAnswer(grant.role, list(grant.queues)) for grant in me.grants]
    return MeAnswer(me.id, me.name, me.kind, me.role, grants, Moment.known(me.until))


def key_answer(key: ApiKey) -> KeyAnswer:
    """A key without its secret."""
    return KeyAnswer(
        key.id,
        key.name,
        key.grant.role,
        list(key.grant.queues),
        Moment.known(key.expires),
        key.made_by,
        Moment.known(key.made_at),
    )


@ACCESS.row("GET", "/admin/keys", Role.ADMIN, EVERY_QUEUE, answer=KeyList)
async def _list_keys(call: Call[Empty, None]) -> KeyList:
    """The API keys, without their secrets."""
    ring = call.services.shared.gate.keys
    await ring.refresh(call.services.clock.now())
    items = [key_answer(key) for key in call.services.keys]
    return KeyList(items, len(items))


@ACCESS.row("POST", "/admin/keys", Role.ADMIN, EVERY_QUEUE, body=NewKey, answer=MadeKey, status=201)
async def _make_key(call: Call[Empty, NewKey]) -> MadeKey:
    """A new API key; its secret is shown this once."""
    body, services = call.body, call.services
    now = services.clock.now()
    secret, key = new_key(
        body.name,
        services.grant(body.role, tuple(body.queues) or EVERYTHING),
        expires=now + body.days * _DAY_S,
        made_by=call.principal.name,
        now=now,
    )
    details = {"key": key.id, "name": key.name, "role": body.role.value}
    await call.operations.note("key.create", details=details)
    await services.shared.gate.keys.add(key)
    return MadeKey(key_answer(key), secret)


@ACCESS.row("DELETE", "/admin/keys/{key}", Role.ADMIN, EVERY_QUEUE, status=204)
async def _delete_key(call: Call[Empty, None]) -> None:
    """Let a key open no more."""
    key = await call.services.remove_key(call.path["key"])
    details = {"key": key.id, "name": key.name}
    await call.operations.note("key.delete", details=details)


@ACCESS.answer(endpoints.AUDIT)
async def _list_audit(call: Call[AuditQuery, None]) -> AuditList:
    """List the entries of the audit, the newest first."""
    entries = await call.operations.audit(call.query)
    more = str(entries[-1].number) if len(entries) == call.query.limit else None
    return AuditList(entries, more)


@ACCESS.row("GET", "/healthz", None, NO_QUEUE, media=("text/plain",), public=True)
async def _healthz(_call: Call[Empty, None]) -> Response:
    """Whether the service is alive."""
    return PlainTextResponse("ok\n")


@ACCESS.row(
    "GET",
    "/readyz",
    None,
    NO_QUEUE,
    answer=ReadyAnswer,
    public=True,
    further=((503, ReadyAnswer),),
)
async def _readyz(call: Call[Empty, None]) -> ApiAnswer:
    """Whether the broker answers, too."""
    services = call.services
    error = (await services.recent.sweep.get_or_last()).error
    known = None
    with suppress(Refused):  # a probe with a wrong key is still a probe
        known = await services.shared.gate.identify(call.request)
    reason = ""
    if error is not None:
        title = trouble_title(error)
        reason = title[0].lower() + title[1:]
    if known is not None and isinstance(error, HopbackError):
        reason = str(error)
    broker = "" if known is None else services.broker.address
    answer = ReadyAnswer(error is None, __version__, broker, reason)
    return ApiAnswer(answer, status=200 if error is None else 503)


@ACCESS.row("GET", "/metrics", Role.VIEWER, EVERY_QUEUE, media=("text/plain",))
async def _metrics(call: Call[Empty, None]) -> Response:
    """Depths and sessions for Prometheus."""
    return Response(
        await metrics_text(call.services), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


async def metrics_text(services: Services) -> str:
    """Depths and jobs of one broker for Prometheus, from the cached sweep."""
    await services.recent.sweep.get_or_last()
    return metrics_of([services])


def metrics_of(brokers: Sequence[Services], *, labelled: bool = False) -> str:
    """The metrics of these brokers as they were last read; `labelled` says of each whose it is."""
    up, dead_letters, sessions = [], [], []
    for each in brokers:
        name = f'broker="{_escaped(each.name)}"' if labelled else ""
        alone, beside = (f"{{{name}}}", f"{name},") if name else ("", "")
        swept = each.recent.sweep.known
        up.append(
            f"hopback_admin_broker_up{alone} {int(swept is not None and swept.error is None)}"
        )
        dead_letters += [
            f'hopback_dead_letters{{{beside}queue="{_escaped(one.queue)}"}} {one.depth.total}'
            for one in (() if swept is None else swept.queues)
            if one.depth.total is not None
        ]
        sessions.append(f"hopback_admin_sessions{alone} {len(each.operations.sessions())}")
    lines = [
        "# HELP hopback_admin_broker_up Whether the broker answered the last sweep.",
        "# TYPE hopback_admin_broker_up gauge",
        *up,
        "# HELP hopback_dead_letters Messages in each dead-letter queue.",
        "# TYPE hopback_dead_letters gauge",
        *dead_letters,
        "# HELP hopback_admin_sessions Open browse sessions.",
        "# TYPE hopback_admin_sessions gauge",
        *sessions,
    ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _itself(entry: object) -> object:
    """An entry of the contract is its own answer."""
    return entry


_OLDER = 100  # entries of the audit on one page
_NOTICE_S = 30 * 86_400  # a month: long enough not to nag, short enough to be said again


ACCESS_PAGES = Pages()
"""The rows of this part."""


def sign_in_routes(services: Services, templates: Environment) -> list[Route]:
    """Signing in and out: the only pages for people who are not known."""
    door = _SignIn(services, templates)
    return [
        Route("/login", door.show, methods=["GET"]),
        Route("/login", door.sign_in, methods=["POST"]),
        Route("/login/oidc", door.begin, methods=["GET"]),
        Route(CALLBACK, door.finish, methods=["GET"]),
        Route("/logout", door.sign_out, methods=["POST"]),
    ]


class _SignIn:
    def __init__(self, services: Services, templates: Environment) -> None:
        self._services = services
        self._templates = templates

    async def show(self, request: Request) -> Response:
        """The form; a login link signs in at once."""
        token = request.query_params.get("token")
        onward = own_page(request.query_params.get("next", "/"))
        if token is not None:
            return await self._welcome_or_refuse(
                request, onward, lambda gate: gate.follow_link(request, token)
            )
        if not self._services.shared.gate.asks_who:
            return see_other("/")
        return self._form(request, onward)

    async def sign_in(self, request: Request) -> Response:
        """Exchange a key or token for a cookie."""
        fields = dict(await form_fields(request))
        try:
            self._services.shared.gate.refuse_foreign(request)
        except Refused as refused:
            return self._form(request, "/", refused.detail, refused.status)
        secret = fields.get("secret", "").strip()
        return await self._welcome_or_refuse(
            request, own_page(fields.get("next", "/")), lambda gate: gate.sign_in(secret)
        )

    async def sign_out(self, request: Request) -> Response:
        """End the session, here and wherever its cookie may have been copied to."""
        gate, secure = self._services.shared.gate, request.url.scheme == "https"
        try:
            gate.refuse_foreign(request)
        except Refused as refused:
            return self._form(request, "/", refused.detail, refused.status)
        value, elsewhere = request.cookies.get(cookie_name(secure=secure)), ""
        now = self._services.clock.now()
        if value is not None and (principal := await gate.cookies.read(value, now)) is not None:
            elsewhere = await gate.cookies.end(value, now)
            await self._services.acting_as(principal).note(
                "access.sign-out", details={"address": address_of(request)}
            )
        answer = see_other("/login")
        if elsewhere:
            # By a page of ours: a form may only lead to ourselves, whatever redirects follow.
            text = self._templates.get_template("signed_out.html").render(
                **frame_values(self._services, request, None), told=[], elsewhere=elsewhere
            )
            answer = HTMLResponse(text)
        answer.delete_cookie(cookie_name(secure=secure), secure=secure, httponly=True)
        return answer

    async def begin(self, request: Request) -> Response:
        """Send somebody to the provider."""
        gate, secure = self._services.shared.gate, request.url.scheme == "https"
        onward = own_page(request.query_params.get("next", "/"))
        if gate.oidc is None:
            return see_other("/login")
        try:
            gate.take_sign_in(address_of(request))
            attempt = await gate.oidc.begin(onward)
        except Refused as refused:
            return self._form(request, onward, refused.detail, refused.status)
        answer = see_other(attempt.url)
        answer.set_cookie(
            _attempt_cookie(secure=secure),
            attempt.cookie,
            max_age=attempt.seconds,
            httponly=True,
            secure=secure,
            samesite="lax",
        )
        return answer

    async def finish(self, request: Request) -> Response:
        """Believe what the provider says of somebody, or say why not."""
        gate, secure = self._services.shared.gate, request.url.scheme == "https"
        if gate.oidc is None:
            return see_other("/login")
        cookie = request.cookies.get(_attempt_cookie(secure=secure))
        try:
            gate.take_sign_in(address_of(request))
            found = await gate.oidc.finish(dict(request.query_params), cookie)
            principal, session, onward = found
            answer = await self._welcome(request, own_page(onward), principal, session)
        except Refused as refused:
            await self._services.denied(NOBODY, request, refused, "")
            answer = self._form(request, "/", refused.detail, refused.status)
        answer.delete_cookie(_attempt_cookie(secure=secure), secure=secure, httponly=True)
        return answer

    async def _welcome_or_refuse(
        self,
        request: Request,
        onward: str,
        identify: Callable[[Gate], Principal | Awaitable[Principal]],
    ) -> Response:
        gate, address = self._services.shared.gate, address_of(request)
        try:
            gate.take_sign_in(address)
            found = identify(gate)
            principal = await found if isinstance(found, Awaitable) else found
        except Refused as refused:
            await self._services.denied(NOBODY, request, refused, "")
            return self._form(request, onward, refused.detail, refused.status)
        return await self._welcome(request, onward, principal)

    async def _welcome(
        self, request: Request, onward: str, principal: Principal, session: str = ""
    ) -> Response:
        await self._services.acting_as(principal).note(
            "access.sign-in", details={"address": address_of(request), "by": principal.kind}
        )
        now = self._services.clock.now()
        value, seconds = self._services.shared.gate.cookies.write(principal, now, session)
        secure = request.url.scheme == "https"
        answer = see_other(onward)
        answer.set_cookie(
            cookie_name(secure=secure),
            value,
            max_age=seconds,
            httponly=True,
            secure=secure,
            samesite="lax",
        )
        return answer

    def _form(
        self, request: Request, onward: str, trouble: str = "", status: int = 200
    ) -> Response:
        oidc = self._services.shared.gate.oidc
        text = self._templates.get_template("login.html").render(
            **frame_values(self._services, request, None),
            told=[],
            next=onward,
            trouble=trouble,
            provider="" if oidc is None else oidc.settings.label,
        )
        return HTMLResponse(text, status)


def _attempt_cookie(*, secure: bool) -> str:
    """The cookie of a sign-in by the provider that has begun."""
    return "__Host-hopback_oidc" if secure else "hopback_oidc"


@ACCESS_PAGES.post("/notice/read", None, NO_QUEUE)
async def _notice_read(visit: Visit) -> Response:
    answer = see_other(own_page(visit.field("next", "/")))
    secure = visit.request.url.scheme == "https"
    answer.set_cookie(
        NOTICE_READ, "1", max_age=_NOTICE_S, httponly=True, secure=secure, samesite="lax"
    )
    return answer


@ACCESS_PAGES.get("/you", None, NO_QUEUE)
async def _you(visit: Visit) -> Response:
    return _you_page(visit, "")


def _you_page(visit: Visit, secret: str) -> Response:
    return visit.page(
        "you.html",
        manages=visit.principal.allows_everywhere(Role.ADMIN)
        and visit.services.shared.gate.asks_who,
        keys=visit.services.keys,
        keys_last=visit.services.shared.gate.keys.lasts,
        secret=secret,
    )


@ACCESS_PAGES.post("/keys", Role.ADMIN, EVERY_QUEUE)
async def _make_key_by_page(visit: Visit) -> Response:
    services, now = visit.services, visit.services.clock.now()
    role, name = visit.field("role"), visit.field("name").strip()
    if role not in set(Role) or not 1 <= len(name) <= 100:
        raise Refused(400, "bad-field", "Expected a name, and viewer, operator or admin as role.")
    days = visit.number("days", 90, least=1, most=3650)
    queues = tuple(visit.field("queues").replace(",", " ").split()) or EVERYTHING
    secret, key = new_key(
        name,
        services.grant(Role(role), queues),
        expires=now + days * _DAY_S,
        made_by=visit.principal.name,
        now=now,
    )
    details = {"key": key.id, "name": key.name, "role": role}
    await visit.operations.note("key.create", details=details)
    await services.shared.gate.keys.add(key)
    return _you_page(visit, secret)


@ACCESS_PAGES.post("/keys/{key}/delete", Role.ADMIN, EVERY_QUEUE)
async def _delete_key_by_page(visit: Visit) -> Response:
    key = await visit.services.remove_key(visit.path["key"])
    details = {"key": key.id, "name": key.name}
    await visit.operations.note("key.delete", details=details)
    return see_other("/you?told=key-deleted")


@ACCESS_PAGES.get("/audit", Role.ADMIN, EVERY_QUEUE)
async def _audit(visit: Visit) -> Response:
    before = visit.number("cursor", 0) or None
    asked = AuditQuery(
        visit.field("by"), visit.field("action"), visit.field("queue"), "", before, _OLDER
    )
    entries = await visit.operations.audit(asked)
    older = quote(str(entries[-1].number)) if len(entries) == _OLDER else ""
    return visit.page("audit.html", asked=asked, entries=entries, older=older)
