"""An OpenID Connect provider of another project, which runs as a process."""

from __future__ import annotations

import subprocess
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.clients.environment import PROGRAMS, oidc_modules

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SECRET", "OidcProvider", "oidc_provider", "oidc_settings"]

SECRET = "the secret of a client for the tests"


@dataclass(frozen=True, slots=True)
class OidcProvider:
    """A provider that is running. By default, users have the role that their name says."""

    issuer: str
    process: subprocess.Popen[str]

    def lock(self, name: str) -> None:
        self._tell(f"/lock?sub={name}")

    def give(self, name: str, *roles: str) -> None:
        """Change the roles of a user."""
        self._tell(f"/roles?sub={name}&roles={','.join(roles)}")

    def _tell(self, path: str) -> None:
        asked = urllib.request.Request(f"{self.issuer}{path}", method="POST")
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200


@contextmanager
def oidc_provider(page: str, *, secret: str = SECRET, seconds: int = 60) -> Iterator[OidcProvider]:
    """Run a provider with a client `hopback` whose address is `page`.

    Tokens expire after `seconds`.
    """
    program = str(PROGRAMS / "oidc_provider.mjs")
    process = subprocess.Popen(
        ["node", program, str(oidc_modules()), "hopback", secret, page, str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        issuer = process.stdout.readline().strip()
        assert issuer, "the provider did not start"
        yield OidcProvider(issuer, process)
    finally:
        process.kill()
        process.communicate()


def oidc_settings(issuer: str, page: str, /, **more: Any) -> dict[str, Any]:
    """Return the settings of a service whose users sign in with the provider."""
    said = {"issuer": issuer, "client_id": "hopback", "page": page}
    return {"auth": {"oidc": {**said, "client_secret_env": "OIDC_SECRET", **more}}}
