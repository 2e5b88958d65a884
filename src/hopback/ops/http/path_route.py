"""Routes that match the encoded path."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

if TYPE_CHECKING:
    from starlette.types import Scope


class PathRoute(Route):
    """Match the path as it was sent, then decode the names in it once.

    A queue name can contain an encoded slash. If names were decoded twice, permissions could be
    checked for a different queue than the one that is used.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request. The resulting scope contains the path as it was sent and the decoded names."""
        sent = sent_path(scope)
        if (
            unquote(sent) != scope["path"]
        ):  # Starlette also tries paths with a slash added or removed
            return super().matches(scope)
        match, child = super().matches({**scope, "path": sent})
        if match is Match.NONE:
            return match, child
        try:
            names = {
                name: unquote(value, errors="strict")
                for name, value in child["path_params"].items()
            }
        except UnicodeDecodeError:
            raise HTTPException(400, "The path: expected UTF-8, percent-encoded.") from None
        return match, {**child, "path": sent, "path_params": names}


def sent_path(scope: Scope) -> str:
    """Return the percent-encoded path as it was sent."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return raw.partition(b"?")[0].decode("latin-1")
