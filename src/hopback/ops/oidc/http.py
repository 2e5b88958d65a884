"""The routes for signing in with OpenID Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from hopback.ops.http.problems import Refused
from hopback.ops.http.session_cookies import set_cookie
from hopback.ops.http.turns import address_of
from hopback.ops.oidc.settings import CALLBACK
from hopback.ops.page.pages import own_page, see_other

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from hopback.ops.http.sign_in import SignInPages


def oidc_routes(pages: SignInPages) -> list[Route]:
    """Return the routes that redirect to the provider and back."""

    async def begin(request: Request) -> Response:
        gate, secure = pages.services.shared.gate, request.url.scheme == "https"
        onward = own_page(request.query_params.get("next", "/"))
        if gate.oidc is None:
            return see_other("/login")
        try:
            gate.take_sign_in(address_of(request))
            attempt = await gate.oidc.begin(onward)
        except Refused as refused:
            return pages.form(request, onward, refused)
        answer = see_other(attempt.url)
        name = _attempt_cookie(secure=secure)
        set_cookie(answer, name, attempt.cookie, attempt.seconds, secure=secure)
        return answer

    async def finish(request: Request) -> Response:
        gate, secure = pages.services.shared.gate, request.url.scheme == "https"
        if gate.oidc is None:
            return see_other("/login")
        name = _attempt_cookie(secure=secure)
        try:
            gate.take_sign_in(address_of(request))
            found = await gate.oidc.finish(dict(request.query_params), request.cookies.get(name))
            principal, session, onward = found
            answer = await pages.welcome(request, own_page(onward), principal, session)
        except Refused as refused:
            answer = await pages.refuse(request, "/", refused)
        answer.delete_cookie(name, secure=secure, httponly=True)
        return answer

    return [
        Route("/login/oidc", begin, methods=["GET"]),
        Route(CALLBACK, finish, methods=["GET"]),
    ]


def _attempt_cookie(*, secure: bool) -> str:
    return "__Host-hopback_oidc" if secure else "hopback_oidc"
