"""Sign in with OpenID Connect, using the authorization code flow with PKCE.

All responses of the provider are verified. `state` ensures that the response belongs to the browser
that has started the sign-in. `nonce` ensures that the token belongs to this sign-in, and PKCE that
the code belongs to this service. Signatures are verified with the published keys of the issuer.

Tokens are encrypted and stay on the server. The browser only gets a session cookie as for any other
sign-in. If the provider has issued a refresh token, it is used whenever the access token expires. A
user who was locked out at the provider is then signed out, and roles are updated.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jwt
from msgspec import structs

from hopback.extras import needs
from hopback.ops.http.problems import Refused
from hopback.ops.http.tokens import (
    BadToken,
    GrantSettings,
    Jwks,
    JwtSettings,
    TokenReader,
    is_safe_address,
)
from hopback.ops.oidc.provider import Provider, ProviderRefusal, shorten
from hopback.ops.oidc.sessions import OidcSession, OidcSessions

with needs("oidc", "sign-in by OIDC"):
    from authlib.common.urls import add_params_to_uri  # type: ignore[import-untyped]
    from authlib.oauth2.rfc6749.parameters import prepare_grant_uri  # type: ignore[import-untyped]
    from authlib.oauth2.rfc7636 import create_s256_code_challenge  # type: ignore[import-untyped]
    from authlib.oidc.core import CodeIDToken  # type: ignore[import-untyped]
    from joserfc.errors import JoseError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hopback.clock import Clock
    from hopback.ops.contract.roles import Principal
    from hopback.ops.oidc.settings import OidcSettings
    from hopback.sql.database import SqlDatabase

_LOG = logging.getLogger("hopback.ops.http")
_ATTEMPT_S = 600  # seconds within which a user has to sign in at the provider
_GRACE_S = 900.0  # seconds for which sessions stay valid while the provider does not respond
# seconds for which a process claims the renewal, longer than the provider's timeout
_RENEW_S = 15.0
# seconds until the next renewal if the provider does not specify when the token expires
_DEFAULT_EXPIRY_S = 300.0
_AUDIENCE = "hopback-oidc"


@dataclass(frozen=True, slots=True)
class OidcAttempt:
    """A sign-in that was started, with the address to redirect to and the cookie to set."""

    url: str
    cookie: str
    seconds: int = _ATTEMPT_S


class OidcSignIn:
    """Sign users in with one provider, and manage their sessions."""

    def __init__(
        self,
        settings: OidcSettings,
        grants: Sequence[GrantSettings],
        *,
        client_secret: str,
        session_secret: str,
        session_s: float,
        database: SqlDatabase,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self._secret = session_secret
        self._session_s = session_s
        self._clock = clock
        self._provider = Provider(settings, client_secret, clock)
        self._sessions = OidcSessions(database, session_secret)
        self._reader = TokenReader(
            JwtSettings(
                issuer=settings.issuer,
                audience=settings.client_id,
                jwks_url=settings.issuer,
                algorithms=settings.algorithms,
                roles_claim=settings.roles_claim,
                name_claim=settings.name_claim,
            ),
            grants,
            Jwks(self._provider.fetch_keys, clock),
        )

    async def begin(self, onward: str) -> OidcAttempt:
        """Start a sign-in. `onward` is the page to open afterwards."""
        provider = await self._provider.document()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        url = prepare_grant_uri(
            provider["authorization_endpoint"],
            client_id=self.settings.client_id,
            response_type="code",
            state=state,
            redirect_uri=self.settings.callback,
            scope=" ".join(self.settings.scopes),
            nonce=nonce,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
        )
        claims = {
            "aud": _AUDIENCE,
            "exp": int(self._clock.now()) + _ATTEMPT_S,
            "state": state,
            "nonce": nonce,
            "verifier": verifier,
            "next": onward,
        }
        return OidcAttempt(url, jwt.encode(claims, self._secret, algorithm="HS256"))

    async def finish(
        self, answer: Mapping[str, str], cookie: str | None
    ) -> tuple[Principal, str, str]:
        """Complete a sign-in. Returns the user, the session id and the page to open.

        Raises Refused if the provider's response is not valid.
        """
        attempt = self._attempt(cookie)
        if attempt is None or not hmac.compare_digest(
            answer.get("state", "").encode(), attempt["state"].encode()
        ):
            raise Refused(
                400,
                "foreign-sign-in",
                "This sign-in did not begin in this browser, or took too long. Begin again.",
            )
        provider = await self._provider.document()
        needs_issuer = provider.get("authorization_response_iss_parameter_supported") is True
        expected = self.settings.issuer
        if answer.get("iss", None if needs_issuer else expected) != expected:
            raise _denial("the answer comes from another issuer")
        if "code" not in answer:
            why = answer.get("error_description") or answer.get("error") or "no code"
            raise _denial(f"the provider answered {shorten(why)!r}")
        now = self._clock.now()
        try:
            tokens = await self._provider.tokens(
                grant_type="authorization_code",
                code=answer["code"],
                redirect_uri=self.settings.callback,
                code_verifier=attempt["verifier"],
            )
            until = now + self._session_s
            session = await self._check(tokens, attempt["nonce"], now, until)
        except (ProviderRefusal, BadToken) as error:
            raise _denial(str(error)) from None
        session_id = secrets.token_urlsafe(16)
        await self._sessions.put(session_id, session, now)
        return self._principal(session), session_id, attempt["next"]

    def _attempt(self, cookie: str | None) -> dict[str, Any] | None:
        try:
            claims: dict[str, Any] = jwt.decode(
                cookie or "",
                self._secret,
                algorithms=["HS256"],
                audience=_AUDIENCE,
                options={"require": ["exp"], "verify_exp": False},
            )
        except jwt.PyJWTError:
            return None
        return claims if self._clock.now() < claims["exp"] else None

    async def _check(
        self, tokens: Mapping[str, Any], nonce: str | None, now: float, until: float
    ) -> OidcSession:
        """Verify the tokens and return the session of their user. Raises BadToken if they are not valid."""
        token, access = tokens.get("id_token"), tokens.get("access_token")
        if not isinstance(token, str):
            raise BadToken("the provider sent no ID token: the scopes need `openid`")
        claims: Mapping[str, Any] = await self._reader.claims(token)
        params = {"client_id": self.settings.client_id, "nonce": nonce, "access_token": access}
        header = jwt.get_unverified_header(token)
        try:
            # The reader has already checked the times. This checks nonce, azp and at_hash.
            checked = CodeIDToken(dict(claims), header, {}, params)
            checked.validate(leeway=self._reader.leeway_s)
        except JoseError as error:
            raise BadToken(f"its ID token does not belong to this sign-in ({error})") from None
        found = self._reader.person(claims)
        if isinstance(access, str) and not found.roles:
            more = await self._provider.userinfo(access)
            if more and more.get("sub") != claims["sub"]:
                raise BadToken("its userinfo is about another user")
            found = self._reader.person({**more, **claims})
        refresh = tokens.get("refresh_token")
        return OidcSession(
            found.subject,
            found.name,
            found.roles,
            token,
            refresh if isinstance(refresh, str) else "",
            now + _expiry_s(tokens),
            until,
        )

    def _principal(self, session: OidcSession) -> Principal:
        return self._reader.principal_of(
            "oidc", session.subject, session.name, session.roles, until=session.until
        )

    async def find(self, session_id: str, now: float) -> Principal | None:
        """Return the user of a session. If the access token has expired, the session is renewed first."""
        session = await self._sessions.get(session_id, now)
        if session is not None and session.refresh_token and now >= session.check_at:
            session = await self._renew(session_id, session, now)
        return None if session is None else self._principal(session)

    async def _renew(self, session_id: str, session: OidcSession, now: float) -> OidcSession | None:
        """Renew a session. If the provider does not respond, the session stays valid for some time.

        After this time, the session is refused, even while another request or process is renewing
        it. It becomes valid again when the provider confirms it.
        """
        in_grace = session if now - session.check_at <= _GRACE_S else None
        if not await self._sessions.claim(session_id, now, _RENEW_S):
            return in_grace
        try:
            tokens = await self._provider.tokens(
                grant_type="refresh_token", refresh_token=session.refresh_token
            )
            tokens.setdefault("refresh_token", session.refresh_token)
            if "id_token" in tokens:
                fresh = await self._check(tokens, None, now, session.until)
                if fresh.subject != session.subject:
                    raise ProviderRefusal("the provider answered for another user")
            else:
                refresh, check_at = tokens["refresh_token"], now + _expiry_s(tokens)
                fresh = structs.replace(session, refresh_token=refresh, check_at=check_at)
        except (ProviderRefusal, BadToken) as error:
            _LOG.info("a session of %s ends: %s", session.name, error)
            await self.end(session_id)
            return None
        except Refused:
            return in_grace
        await self._sessions.put(session_id, fresh, now)
        return fresh

    async def end(self, session_id: str) -> str:
        """Delete a session.

        Returns the address for signing out at the provider, or an empty string if there is none.
        """
        session = await self._sessions.get(session_id, self._clock.now())
        await self._sessions.remove(session_id)
        if session is None:
            return ""
        try:
            address = str((await self._provider.document()).get("end_session_endpoint", ""))
        except Refused:
            return ""
        if not is_safe_address(address):
            return ""
        values = {
            "client_id": self.settings.client_id,
            "id_token_hint": session.id_token,
            "post_logout_redirect_uri": f"{self.settings.page.rstrip('/')}/login",
        }
        return str(add_params_to_uri(address, list(values.items())))


def _expiry_s(tokens: Mapping[str, Any]) -> float:
    """Return the number of seconds until the access token expires."""
    found = tokens.get("expires_in")
    return float(found) if isinstance(found, int | float) and found > 0 else _DEFAULT_EXPIRY_S


def _denial(why: str) -> Refused:
    return Refused(401, "sign-in-refused", f"The sign-in was refused: {why}.")
