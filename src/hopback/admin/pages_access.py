"""The pages about people: sign in, sign out, you, keys, the audit."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from hopback.admin.auth import CALLBACK, address_of, cookie_name, forbidden
from hopback.admin.keys import new_key
from hopback.admin.pages import (
    NOTICE_READ,
    Pages,
    form_fields,
    frame_values,
    own_page,
    see_other,
)
from hopback.admin.problems import Refused
from hopback.admin.roles import EVERYTHING, Role
from hopback.deadletters.requests import AuditQuery

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Environment
    from starlette.requests import Request

    from hopback.admin.auth import Gate
    from hopback.admin.pages import Visit
    from hopback.admin.roles import Principal
    from hopback.admin.services import Services

__all__ = ["ACCESS_PAGES", "sign_in_routes"]

_OLDER = 100  # entries of the audit on one page
_DAY_S = 86_400.0  # seconds
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
        if not self._services.gate.asks_who:
            return see_other("/")
        return self._form(request, onward)

    async def sign_in(self, request: Request) -> Response:
        """Exchange a key or token for a cookie."""
        fields = dict(await form_fields(request))
        try:
            self._services.gate.refuse_foreign(request)
        except Refused as refused:
            return self._form(request, "/", refused.detail, refused.status)
        secret = fields.get("secret", "").strip()
        return await self._welcome_or_refuse(
            request, own_page(fields.get("next", "/")), lambda gate: gate.sign_in(secret)
        )

    async def sign_out(self, request: Request) -> Response:
        """End the session, here and wherever its cookie may have been copied to."""
        gate, secure = self._services.gate, request.url.scheme == "https"
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
        gate, secure = self._services.gate, request.url.scheme == "https"
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
        gate, secure = self._services.gate, request.url.scheme == "https"
        if gate.oidc is None:
            return see_other("/login")
        cookie = request.cookies.get(_attempt_cookie(secure=secure))
        try:
            gate.take_sign_in(address_of(request))
            found = await gate.oidc.finish(dict(request.query_params), cookie)
            principal, session, onward = found
            answer = await self._welcome(request, own_page(onward), principal, session)
        except Refused as refused:
            await self._services.denied(self._services.nobody, request, refused, "")
            answer = self._form(request, "/", refused.detail, refused.status)
        answer.delete_cookie(_attempt_cookie(secure=secure), secure=secure, httponly=True)
        return answer

    async def _welcome_or_refuse(
        self,
        request: Request,
        onward: str,
        identify: Callable[[Gate], Principal | Awaitable[Principal]],
    ) -> Response:
        gate, address = self._services.gate, address_of(request)
        try:
            gate.take_sign_in(address)
            found = identify(gate)
            principal = await found if isinstance(found, Awaitable) else found
        except Refused as refused:
            await self._services.denied(self._services.nobody, request, refused, "")
            return self._form(request, onward, refused.detail, refused.status)
        return await self._welcome(request, onward, principal)

    async def _welcome(
        self, request: Request, onward: str, principal: Principal, session: str = ""
    ) -> Response:
        await self._services.acting_as(principal).note(
            "access.sign-in", details={"address": address_of(request), "by": principal.kind}
        )
        now = self._services.clock.now()
        value, seconds = self._services.gate.cookies.write(principal, now, session)
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
        oidc = self._services.gate.oidc
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


@ACCESS_PAGES.post("/notice/read")
async def _notice_read(visit: Visit) -> Response:
    answer = see_other(own_page(visit.field("next", "/")))
    secure = visit.request.url.scheme == "https"
    answer.set_cookie(
        NOTICE_READ, "1", max_age=_NOTICE_S, httponly=True, secure=secure, samesite="lax"
    )
    return answer


@ACCESS_PAGES.get("/you")
async def _you(visit: Visit) -> Response:
    return _you_page(visit, "")


def _you_page(visit: Visit, secret: str) -> Response:
    return visit.page(
        "you.html",
        manages=visit.principal.allows_everywhere(Role.ADMIN) and visit.services.gate.asks_who,
        keys=visit.services.keys,
        keys_last=visit.services.gate.keys.lasts,
        secret=secret,
    )


def _need_admin(visit: Visit) -> None:
    if not visit.principal.allows_everywhere(Role.ADMIN):
        raise forbidden()


@ACCESS_PAGES.post("/keys")
async def _make_key(visit: Visit) -> Response:
    _need_admin(visit)
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
    await services.gate.keys.add(key)
    return _you_page(visit, secret)


@ACCESS_PAGES.post("/keys/{key}/delete")
async def _delete_key(visit: Visit) -> Response:
    _need_admin(visit)
    key = await visit.services.remove_key(visit.path["key"])
    details = {"key": key.id, "name": key.name}
    await visit.operations.note("key.delete", details=details)
    return see_other("/you?told=key-deleted")


@ACCESS_PAGES.get("/audit")
async def _audit(visit: Visit) -> Response:
    _need_admin(visit)
    before = visit.number("cursor", 0) or None
    asked = AuditQuery(
        visit.field("by"), visit.field("action"), visit.field("queue"), "", before, _OLDER
    )
    entries = await visit.operations.audit(asked)
    older = quote(str(entries[-1].number)) if len(entries) == _OLDER else ""
    return visit.page("audit.html", asked=asked, entries=entries, older=older)
