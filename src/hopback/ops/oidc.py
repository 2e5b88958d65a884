"""Sign-in by the provider of a company: OpenID Connect, authorization code with PKCE.

Everything that the provider says is checked: the answer belongs to the browser that began (state), the token
to this sign-in (nonce), the code to us (PKCE), the signature to the keys that the issuer publishes. Tokens
stay on the server, encrypted; the browser has the cookie of every other sign-in. While a refresh token is
known the provider is asked again whenever its token ends: who was locked out there is out here, and roles
are those of today.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import jwt
import msgspec

from hopback.extras import needs
from hopback.ops.http.auth import CALLBACK, BadToken, Jwks, TokenReader, fetch_json
from hopback.ops.http.problems import Refused
from hopback.ops.http.settings import JwtSettings, is_safe_address
from hopback.text import one_line

with needs("oidc", "sign-in by OIDC"):
    from authlib.common.urls import add_params_to_uri  # type: ignore[import-untyped]
    from authlib.oauth2.auth import ClientAuth  # type: ignore[import-untyped]
    from authlib.oauth2.rfc6749.parameters import prepare_grant_uri  # type: ignore[import-untyped]
    from authlib.oauth2.rfc7636 import create_s256_code_challenge  # type: ignore[import-untyped]
    from authlib.oidc.core import CodeIDToken  # type: ignore[import-untyped]
    from cryptography.fernet import Fernet, InvalidToken
    from joserfc.errors import JoseError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hopback.clock import Clock
    from hopback.ops.contract.roles import Principal
    from hopback.ops.http.settings import GrantSettings, OidcSettings

_LOG = logging.getLogger("hopback.ops.http")
_FRESH_S = 3600.0  # a discovery document changes once in years
_ATTEMPT_S = 600  # seconds for somebody to type a password and find their phone
_ASK_S = 10.0  # a person waits for it
_MOST_BYTES = 256 * 1024  # of an answer; tokens with hundreds of groups have some 20 KiB
_GRACE_S = 900.0  # a provider that is away for a quarter of an hour signs nobody out
_BUSY_S = 15.0  # longer than one refresh takes: nobody else tries meanwhile
_CACHED_S = 3.0  # as late as keys and ended sessions are
_SHOWN = 200  # characters of what a provider says
_AUDIENCE = "hopback-oidc"


@dataclass(frozen=True, slots=True)
class OidcAttempt:
    """A sign-in that has begun: where to send the browser, and what it keeps until it comes back."""

    url: str
    cookie: str
    seconds: int = _ATTEMPT_S


class _KeptPerson(msgspec.Struct, frozen=True):
    """What is kept of somebody who signed in; encrypted wherever it lies."""

    subject: str
    name: str
    roles: list[str]
    id_token: str
    refresh_token: str
    check_at: float
    checked_at: float
    until: float


class OidcSessionStore(Protocol):
    """Where sessions are kept, by id, as texts that nobody else can read."""

    async def get(self, session: str) -> str | None:
        """The text, or None."""

    async def put(self, session: str, document: str, until: float, now: float) -> None:
        """Keep a text until then; those whose time is over are forgotten."""

    async def claim(self, session: str, now: float, seconds: float) -> bool:
        """Be the only one to renew it for so long; False if somebody else is."""

    async def remove(self, session: str) -> None:
        """Forget it; none there is no error."""


class MemoryOidcSessions:
    """Sessions of one process."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, float]] = {}
        self._busy: dict[str, float] = {}

    async def get(self, session: str) -> str | None:
        """The text, or None."""
        return self._kept.get(session, (None,))[0]

    async def put(self, session: str, document: str, until: float, now: float) -> None:
        """Keep a text until then; those whose time is over are forgotten."""
        self._kept = {each: kept for each, kept in self._kept.items() if kept[1] > now}
        self._kept[session] = document, until
        self._busy.pop(session, None)

    async def claim(self, session: str, now: float, seconds: float) -> bool:
        """Be the only one to renew it for so long."""
        if self._busy.get(session, 0.0) > now:
            return False
        self._busy[session] = now + seconds
        return True

    async def remove(self, session: str) -> None:
        """Forget it."""
        self._kept.pop(session, None)
        self._busy.pop(session, None)


class _ProviderRefusal(Exception):
    """The provider says no: to this code, or to going on."""


class OidcSignIn:
    """Signs people in by one provider, and knows them until they leave."""

    def __init__(
        self,
        settings: OidcSettings,
        grants: Sequence[GrantSettings],
        *,
        client_secret: str,
        session_secret: str,
        session_s: float,
        store: OidcSessionStore,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self._client_secret = client_secret
        self._secret = session_secret
        self._session_s = session_s
        self._store = store
        self._clock = clock
        self._found: tuple[float, dict[str, Any]] | None = None
        key = hashlib.sha256(b"hopback oidc sessions\0" + session_secret.encode()).digest()
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
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
            Jwks(self._fetch_keys, clock),
        )
        self._cache: dict[str, tuple[float, _KeptPerson]] = {}

    async def _provider(self) -> dict[str, Any]:
        """The discovery document; Refused if the provider does not answer, or answers oddly."""
        now = self._clock.now()
        if self._found is not None and 0 <= now - self._found[0] < _FRESH_S:
            return self._found[1]
        issuer = self.settings.issuer
        try:
            found = await fetch_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        except Exception as error:  # whatever it answers, it is not our failure
            _LOG.warning("the provider %s does not answer", issuer, exc_info=error)
            raise _away("its discovery document cannot be read") from None
        if not isinstance(found, dict) or found.get("issuer") != issuer:
            said = found.get("issuer") if isinstance(found, dict) else found
            raise _away(f"it calls itself {one_line(str(said))[:_SHOWN]!r}, expected {issuer!r}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not is_safe_address(str(found.get(name, ""))):
                raise _away(f"its {name} is no https address")
        self._found = now, found
        return found

    async def _fetch_keys(self) -> Any:
        return await fetch_json((await self._provider())["jwks_uri"])

    @property
    def callback(self) -> str:
        """The address that the provider has to know."""
        return self.settings.page.rstrip("/") + CALLBACK

    async def begin(self, onward: str) -> OidcAttempt:
        """Send somebody to the provider; `onward` is the page they want afterwards."""
        provider = await self._provider()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        url = prepare_grant_uri(
            provider["authorization_endpoint"],
            client_id=self.settings.client_id,
            response_type="code",
            state=state,
            redirect_uri=self.callback,
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
        self, said: Mapping[str, str], cookie: str | None
    ) -> tuple[Principal, str, str]:
        """Who came back, the id of their session and the page they wanted; Refused if it is not believed."""
        attempt = self._attempt(cookie)
        if attempt is None or not hmac.compare_digest(
            said.get("state", "").encode(), attempt["state"].encode()
        ):
            raise Refused(
                400,
                "foreign-sign-in",
                "This sign-in did not begin in this browser, or took too long; begin again.",
            )
        provider = await self._provider()
        needs_issuer = provider.get("authorization_response_iss_parameter_supported") is True
        if said.get("iss", None if needs_issuer else self.settings.issuer) != self.settings.issuer:
            raise _denied("the answer comes from another issuer")
        if "code" not in said:
            why = said.get("error_description") or said.get("error") or "nothing"
            raise _denied(f"the provider says {one_line(why)[:_SHOWN]!r}")
        now = self._clock.now()
        try:
            tokens = await self._tokens(
                grant_type="authorization_code",
                code=said["code"],
                redirect_uri=self.callback,
                code_verifier=attempt["verifier"],
            )
            kept = await self._believed(tokens, attempt["nonce"], now, now + self._session_s)
        except (_ProviderRefusal, BadToken) as error:
            raise _denied(str(error)) from None
        session = secrets.token_urlsafe(16)
        await self._put(session, kept, now)
        return self._principal(kept), session, attempt["next"]

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

    async def _tokens(self, **form: str) -> dict[str, Any]:
        """What the token endpoint gives; _ProviderRefusal if it refuses, Refused if it does not answer."""
        import httpx

        provider = await self._provider()
        methods = provider.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        method = "none"
        if self._client_secret:
            basic = "client_secret_basic" in methods
            method = "client_secret_basic" if basic else "client_secret_post"
        url, headers, body = ClientAuth(
            self.settings.client_id, self._client_secret, method
        ).prepare(
            "POST",
            provider["token_endpoint"],
            {
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
            str(httpx.QueryParams(form)),
        )
        try:
            async with (
                httpx.AsyncClient(
                    timeout=_ASK_S, follow_redirects=False, trust_env=False
                ) as client,
                client.stream("POST", url, headers=headers, content=body) as answer,
            ):
                content = b""
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > _MOST_BYTES:
                        raise _away("its answer is too large")
            said = json.loads(content)
        except (httpx.HTTPError, ValueError) as error:
            _LOG.warning("the token endpoint of %s fails", self.settings.issuer, exc_info=error)
            raise _away("its token endpoint does not answer as it should") from None
        if answer.status_code >= 500 or not isinstance(said, dict):
            raise _away(f"its token endpoint answers {answer.status_code}")
        if not answer.is_success:
            why = said.get("error_description") or said.get("error") or answer.status_code
            raise _ProviderRefusal(f"the provider says {one_line(str(why))[:_SHOWN]!r}")
        return said

    async def _believed(
        self, tokens: Mapping[str, Any], nonce: str | None, now: float, until: float
    ) -> _KeptPerson:
        """What the tokens say of somebody, checked; BadToken says why it is not believed."""
        token, access = tokens.get("id_token"), tokens.get("access_token")
        if not isinstance(token, str):
            raise BadToken("the provider gave no ID token; the scope needs `openid`")
        claims: Mapping[str, Any] = await self._reader.claims(token)
        params = {"client_id": self.settings.client_id, "nonce": nonce, "access_token": access}
        header = jwt.get_unverified_header(token)
        try:
            # Times were checked with the signature; this is about nonce, azp and at_hash.
            checked = CodeIDToken(dict(claims), header, {}, params)
            checked.validate(leeway=self._reader.leeway_s)
        except JoseError as error:
            raise BadToken(f"its ID token does not belong to this sign-in ({error})") from None
        if isinstance(access, str):
            claims = await self._with_userinfo(claims, access)
        found = self._reader.person(claims)
        lasts = tokens.get("expires_in")
        seconds = float(lasts) if isinstance(lasts, int | float) and lasts > 0 else 300.0
        refresh = tokens.get("refresh_token")
        return _KeptPerson(
            found.subject,
            found.name,
            list(found.roles),
            token,
            refresh if isinstance(refresh, str) else "",
            now + seconds,
            now,
            until,
        )

    async def _with_userinfo(self, claims: Mapping[str, Any], access: str) -> Mapping[str, Any]:
        """The claims, with those of the userinfo endpoint where the ID token names no roles."""
        provider = await self._provider()
        address = str(provider.get("userinfo_endpoint", ""))
        if self._reader.person(claims).roles or not is_safe_address(address):
            return claims
        try:
            more = await fetch_json(address, bearer=access)
        except Exception as error:  # somebody without a role is told so; the log says why
            _LOG.warning("userinfo of %s cannot be read", self.settings.issuer, exc_info=error)
            return claims
        if not isinstance(more, dict) or more.get("sub") != claims["sub"]:
            raise BadToken("its userinfo is about somebody else")
        return {**more, **claims}

    def _principal(self, kept: _KeptPerson) -> Principal:
        return self._reader.granted(
            "oidc", kept.subject, kept.name, tuple(kept.roles), until=kept.until
        )

    async def known(self, session: str, now: float) -> Principal | None:
        """Whose session that is, asked of the provider again where it is time; None if it is over."""
        read_at, kept = self._cache.get(session, (float("-inf"), None))
        if kept is None or not 0 <= now - read_at < _CACHED_S:
            kept = await self._get(session)
        if kept is None or now >= kept.until:
            self._cache.pop(session, None)
            return None
        if kept.refresh_token and now >= kept.check_at:
            kept = await self._checked_again(session, kept, now)
        return None if kept is None else self._principal(kept)

    async def _checked_again(
        self, session: str, kept: _KeptPerson, now: float
    ) -> _KeptPerson | None:
        """Ask the provider again; while it does not answer, the session stays valid for the grace.

        A session after its grace is refused, also while another request or process asks the provider,
        and is valid again when the provider confirms it.
        """
        in_grace = kept if now - kept.check_at <= _GRACE_S else None
        if not await self._store.claim(session, now, _BUSY_S):
            return in_grace
        try:
            tokens = await self._tokens(
                grant_type="refresh_token", refresh_token=kept.refresh_token
            )
            tokens.setdefault("refresh_token", kept.refresh_token)
            if "id_token" in tokens:
                fresh = await self._believed(tokens, None, now, kept.until)
                if fresh.subject != kept.subject:
                    raise _ProviderRefusal("the provider speaks of somebody else")
            else:
                lasts = tokens.get("expires_in")
                seconds = float(lasts) if isinstance(lasts, int | float) and lasts > 0 else 300.0
                fresh = msgspec.structs.replace(
                    kept,
                    refresh_token=tokens["refresh_token"],
                    check_at=now + seconds,
                    checked_at=now,
                )
        except (_ProviderRefusal, BadToken) as error:
            _LOG.info("a session of %s ends: %s", kept.name, error)
            await self.end(session)
            return None
        except Refused:
            return in_grace
        await self._put(session, fresh, now)
        return fresh

    async def _get(self, session: str) -> _KeptPerson | None:
        text = await self._store.get(session)
        if text is None:
            return None
        try:
            kept = msgspec.json.decode(self._fernet.decrypt(text.encode()), type=_KeptPerson)
        except (InvalidToken, msgspec.DecodeError):  # of another session secret
            return None
        self._cache[session] = self._clock.now(), kept
        return kept

    async def _put(self, session: str, kept: _KeptPerson, now: float) -> None:
        text = self._fernet.encrypt(msgspec.json.encode(kept)).decode()
        await self._store.put(session, text, kept.until, now)
        self._cache = {each: one for each, one in self._cache.items() if one[1].until > now}
        self._cache[session] = now, kept

    async def end(self, session: str) -> str:
        """Forget a session; where to sign out at the provider, too, empty if it has no such address."""
        kept = await self._get(session)
        self._cache.pop(session, None)
        await self._store.remove(session)
        if kept is None:
            return ""
        try:
            address = str((await self._provider()).get("end_session_endpoint", ""))
        except Refused:
            return ""
        if not is_safe_address(address):
            return ""
        said = {
            "client_id": self.settings.client_id,
            "id_token_hint": kept.id_token,
            "post_logout_redirect_uri": f"{self.settings.page.rstrip('/')}/login",
        }
        return str(add_params_to_uri(address, list(said.items())))


def _away(why: str) -> Refused:
    return Refused(
        502, "provider-failed", f"The provider of the sign-in cannot be used now: {why}."
    )


def _denied(why: str) -> Refused:
    return Refused(401, "sign-in-refused", f"The sign-in was refused: {why}.")
