"""Sign-in and sign-out. These pages do not require a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from hopback.ops.http.problems import Refused
from hopback.ops.http.services import NOBODY, Services
from hopback.ops.http.session_cookies import cookie_name, set_cookie
from hopback.ops.http.turns import address_of
from hopback.ops.oidc.http import oidc_routes
from hopback.ops.page.pages import form_fields, frame_values, own_page, see_other

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request

    from hopback.ops.contract.roles import Principal
    from hopback.ops.http.auth import Gate


def sign_in_routes(services: Services, templates: Environment) -> list[Route]:
    pages = SignInPages(services, templates)
    return [
        Route("/login", pages.show, methods=["GET"]),
        Route("/login", pages.sign_in, methods=["POST"]),
        Route("/logout", pages.sign_out, methods=["POST"]),
        *oidc_routes(pages),
    ]


class SignInPages:
    """Handle the requests for signing in and out."""

    def __init__(self, services: Services, templates: Environment) -> None:
        self.services = services
        self._templates = templates

    async def show(self, request: Request) -> Response:
        """Show the sign-in form. If the request contains a login link, sign in directly."""
        token = request.query_params.get("token")
        onward = own_page(request.query_params.get("next", "/"))
        if token is not None:
            return await self._identify(
                request, onward, lambda gate: gate.follow_link(request, token)
            )
        if not self.services.shared.gate.asks_who:
            return see_other("/")
        return self.form(request, onward)

    async def sign_in(self, request: Request) -> Response:
        """Sign in with the key or token from the form."""
        fields = dict(await form_fields(request))
        try:
            self.services.shared.gate.refuse_foreign(request)
        except Refused as refused:
            return self.form(request, "/", refused)
        secret = fields.get("secret", "").strip()
        return await self._identify(
            request, own_page(fields.get("next", "/")), lambda gate: gate.sign_in(secret)
        )

    async def sign_out(self, request: Request) -> Response:
        """End the session, so that copies of its cookie also become invalid."""
        gate, secure = self.services.shared.gate, request.url.scheme == "https"
        try:
            gate.refuse_foreign(request)
        except Refused as refused:
            return self.form(request, "/", refused)
        value, elsewhere = request.cookies.get(cookie_name(secure=secure)), ""
        now = self.services.clock.now()
        if value is not None and (principal := await gate.cookies.read(value, now)) is not None:
            elsewhere = await gate.cookies.end(value, now)
            await self.services.on_behalf_of(principal).note(
                "access.sign-out", details={"address": address_of(request)}
            )
        answer = see_other("/login")
        if elsewhere:
            # The content security policy does not allow a form to redirect to the provider, so show
            # a link to it.
            text = self._templates.get_template("signed_out.html").render(
                **frame_values(self.services, request, None), told=[], elsewhere=elsewhere
            )
            answer = HTMLResponse(text)
        answer.delete_cookie(cookie_name(secure=secure), secure=secure, httponly=True)
        return answer

    async def _identify(
        self,
        request: Request,
        onward: str,
        identify: Callable[[Gate], Principal | Awaitable[Principal]],
    ) -> Response:
        gate = self.services.shared.gate
        try:
            gate.take_sign_in(address_of(request))
            found = identify(gate)
            principal = await found if isinstance(found, Awaitable) else found
        except Refused as refused:
            return await self.refuse(request, onward, refused)
        return await self.welcome(request, onward, principal)

    async def welcome(
        self, request: Request, onward: str, principal: Principal, session: str = ""
    ) -> Response:
        """Set the session cookie and redirect to the page `onward`."""
        await self.services.on_behalf_of(principal).note(
            "access.sign-in", details={"address": address_of(request), "by": principal.kind}
        )
        now, secure = self.services.clock.now(), request.url.scheme == "https"
        value, seconds = self.services.shared.gate.cookies.write(principal, now, session)
        answer = see_other(onward)
        set_cookie(answer, cookie_name(secure=secure), value, seconds, secure=secure)
        return answer

    async def refuse(self, request: Request, onward: str, refused: Refused) -> Response:
        """Record the refusal in the audit and show the form with the reason."""
        await self.services.record_denial(NOBODY, request, refused, "")
        return self.form(request, onward, refused)

    def form(self, request: Request, onward: str, refused: Refused | None = None) -> Response:
        """Show the form, with the reason if a sign-in was refused."""
        oidc = self.services.shared.gate.oidc
        text = self._templates.get_template("login.html").render(
            **frame_values(self.services, request, None),
            told=[],
            next=onward,
            trouble="" if refused is None else refused.detail,
            provider="" if oidc is None else oidc.settings.label,
        )
        return HTMLResponse(text, 200 if refused is None else refused.status)
