"""The settings for signing in with OpenID Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from hopback.ops.http.tokens import ASYMMETRIC, is_safe_address

if TYPE_CHECKING:
    from collections.abc import Mapping

CALLBACK = "/login/oidc/callback"
"""The path to which the provider redirects after a sign-in. It must be registered at the provider."""

_Text = Annotated[str, Meta(min_length=1, max_length=500)]


class OidcSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The provider for signing in to the page. `page` is the public address of the page.

    Without `client_secret_env`, the service is a public client that is only protected by PKCE.
    `label` is the text of the button.
    """

    issuer: _Text
    client_id: _Text
    page: _Text
    client_secret_env: str = ""
    scopes: tuple[_Text, ...] = ("openid", "profile", "email")
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    roles_claim: _Text = "roles"
    name_claim: _Text = "preferred_username"
    label: _Text = "Sign in with your company account"

    @property
    def callback(self) -> str:
        """The redirect address to register at the provider."""
        return self.page.rstrip("/") + CALLBACK

    def problem(self, environment: Mapping[str, str]) -> str | None:
        """Return the first problem in these settings, or None."""
        for name in ("issuer", "page"):
            if not is_safe_address(getattr(self, name)):
                return (
                    f"auth.oidc.{name}: expected an https:// address, got {getattr(self, name)!r}"
                )
        if "openid" not in self.scopes:
            return "auth.oidc.scopes: expected openid among them"
        wrong = [name for name in self.algorithms if name not in ASYMMETRIC]
        if wrong or not self.algorithms:
            said = repr(wrong[0]) if wrong else "none"
            return f"auth.oidc.algorithms: expected some of {', '.join(ASYMMETRIC)}, got {said}"
        if self.client_secret_env and not environment.get(self.client_secret_env):
            variable = self.client_secret_env
            return f"auth.oidc.client_secret_env: expected a secret in {variable}, it is not set"
        return None
