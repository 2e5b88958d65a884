"""Access the discovery document, the token endpoint and the userinfo endpoint of the provider."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from hopback.extras import needs
from hopback.ops.http.problems import Refused
from hopback.ops.http.tokens import fetch_json, is_safe_address
from hopback.text import one_line

with needs("oidc", "sign-in by OIDC"):
    from authlib.oauth2.auth import ClientAuth  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from hopback.clock import Clock
    from hopback.ops.oidc.settings import OidcSettings

_LOG = logging.getLogger("hopback.ops.http")
_FRESH_S = 3600.0  # seconds for which a discovery document is used, which rarely changes
_ANSWER_S = 10.0  # seconds to wait for the token endpoint while a user is waiting
_MOST_BYTES = 256 * 1024  # bytes of a response. Tokens with hundreds of groups have about 20 KiB.
# characters of the provider's messages that are shown, which fit in a line of the page
_SHOWN = 200


class ProviderRefusal(Exception):
    """The provider has refused a code or a refresh token."""


class Provider:
    """Send requests to the provider. All methods raise Refused if the response is not as expected."""

    def __init__(self, settings: OidcSettings, client_secret: str, clock: Clock) -> None:
        self._settings = settings
        self._client_secret = client_secret
        self._clock = clock
        self._found: tuple[float, dict[str, Any]] | None = None

    async def document(self) -> dict[str, Any]:
        """Return the discovery document."""
        now = self._clock.now()
        if self._found is not None and 0 <= now - self._found[0] < _FRESH_S:
            return self._found[1]
        issuer = self._settings.issuer
        try:
            found = await fetch_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        except Exception as error:  # the response can be anything
            _LOG.warning("the provider %s does not answer", issuer, exc_info=error)
            raise _provider_error("its discovery document cannot be read") from None
        if not isinstance(found, dict) or found.get("issuer") != issuer:
            named = found.get("issuer") if isinstance(found, dict) else found
            raise _provider_error(f"its issuer is {shorten(str(named))!r}, expected {issuer!r}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not is_safe_address(str(found.get(name, ""))):
                raise _provider_error(f"its {name} is not an https address")
        self._found = now, found
        return found

    async def fetch_keys(self) -> Any:
        """Return the document with the signing keys."""
        return await fetch_json((await self.document())["jwks_uri"])

    async def tokens(self, **form: str) -> dict[str, Any]:
        """Post a form to the token endpoint. Raises ProviderRefusal if it is refused."""
        import httpx

        document = await self.document()
        methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        method = "none"
        if self._client_secret:
            basic = "client_secret_basic" in methods
            method = "client_secret_basic" if basic else "client_secret_post"
        url, headers, body = ClientAuth(
            self._settings.client_id, self._client_secret, method
        ).prepare(
            "POST",
            document["token_endpoint"],
            {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"},
            str(httpx.QueryParams(form)),
        )
        try:
            async with (
                httpx.AsyncClient(
                    timeout=_ANSWER_S, follow_redirects=False, trust_env=False
                ) as client,
                client.stream("POST", url, headers=headers, content=body) as answer,
            ):
                content = b""
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > _MOST_BYTES:
                        raise _provider_error("its answer is too large")
            found = json.loads(content)
        except (httpx.HTTPError, ValueError) as error:
            _LOG.warning("the token endpoint of %s fails", self._settings.issuer, exc_info=error)
            raise _provider_error("its token endpoint does not answer as it should") from None
        if answer.status_code >= 500 or not isinstance(found, dict):
            raise _provider_error(f"its token endpoint answers {answer.status_code}")
        if not answer.is_success:
            why = found.get("error_description") or found.get("error") or answer.status_code
            raise ProviderRefusal(f"the provider answered {shorten(str(why))!r}")
        return found

    async def userinfo(self, access_token: str) -> dict[str, Any]:
        """Return the claims of the userinfo endpoint. If it cannot be read, there are no claims."""
        address = str((await self.document()).get("userinfo_endpoint", ""))
        if not is_safe_address(address):
            return {}
        try:
            found = await fetch_json(address, bearer=access_token)
        except Exception as error:  # the user has no roles then, and the reason is logged
            _LOG.warning("userinfo of %s cannot be read", self._settings.issuer, exc_info=error)
            return {}
        return found if isinstance(found, dict) else {"sub": None}


def shorten(text: str) -> str:
    """Return the beginning of a text in one line."""
    return one_line(text)[:_SHOWN]


def _provider_error(why: str) -> Refused:
    return Refused(
        502, "provider-failed", f"The provider of the sign-in cannot be used now: {why}."
    )
