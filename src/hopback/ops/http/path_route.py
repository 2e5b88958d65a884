"""Routes of the API and of the pages, by the path as it was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

if TYPE_CHECKING:
    from starlette.types import Scope


class PathRoute(Route):
    """Match the path as it was sent and decode its names once.

    The name of a queue may contain a slash, which is sent encoded. If a name were decoded twice, the
    permission of one queue would be checked and another queue would be used.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request. The scope contains the path as it was sent and the decoded names."""
        sent = sent_path(scope)
        if (
            unquote(sent) != scope["path"]
        ):  # Starlette tries the path with and without its last slash
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
    """The path as it was sent, percent-encoded."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return raw.partition(b"?")[0].decode("latin-1")
