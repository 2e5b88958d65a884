"""The line to a server: HTTP requests, and refusals as the command tells them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from hopback.cli.exits import CommandFailed, Exit
from hopback.errors import UnsafeOperation
from hopback.extras import needs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from hopback.cli.documents import Document

__all__ = ["ServerLine"]

_TIMEOUT_S = 60.0
_CODES = {
    400: Exit.USAGE, 401: Exit.NOT_ALLOWED, 403: Exit.NOT_ALLOWED, 404: Exit.NOT_FOUND,
    409: Exit.CONFLICT, 422: Exit.USAGE, 502: Exit.UNREACHABLE, 503: Exit.UNREACHABLE,
    504: Exit.UNREACHABLE,
}  # fmt: skip
_REMEDIES = {
    401: "Say --token TOKEN, or set HOPBACK_TOKEN to a token or API key of this server.",
    403: "Ask whoever runs the server for the role that is named.",
    404: "Correct the name; `hopback dlq ls` and `hopback jobs ls` list what there is.",
}


class ServerLine:
    """Speaks to one server; an async context manager."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._client = _client(self._url, token, transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def get(self, path: str, **query: object) -> Any:
        """What the server answers, as JSON."""
        return (await self._asked("GET", path, params=_given(query))).json()

    async def post(self, path: str, body: object = None, **headers: str) -> Any:
        """Ask for a change; what the server answers."""
        answer = await self._asked("POST", path, json=body, headers=headers)
        return answer.json()

    async def patch(self, path: str, body: object) -> Any:
        """Ask for another value."""
        return (await self._asked("PATCH", path, json=body)).json()

    async def delete(self, path: str) -> None:
        """Ask for an end."""
        await self._asked("DELETE", path)

    async def content(self, path: str) -> bytes:
        """What the server answers, byte for byte."""
        return (await self._asked("GET", path)).content

    async def events(self, path: str) -> AsyncIterator[Document]:
        """The documents of a stream of events, as they come."""
        import httpx

        waits = httpx.Timeout(_TIMEOUT_S, read=None)
        try:
            async with self._client.stream("GET", path, timeout=waits) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise _refusal(answer)
                kind = ""
                async for line in answer.aiter_lines():
                    name, _, value = line.partition(":")
                    if name == "event":
                        kind = value.strip()
                    elif name == "data" and kind == "job":
                        yield json.loads(value)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def _asked(self, method: str, path: str, **more: Any) -> httpx.Response:
        import httpx

        try:
            answer = await self._client.request(method, path, **more)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if answer.status_code >= 400:
            raise _refusal(answer)
        return answer

    def _unreachable(self, error: Exception) -> CommandFailed:
        return CommandFailed(
            f"the server at {self._url} does not answer: {str(error) or type(error).__name__}",
            do="Check --server and that `hopback serve` runs there.",
            code=Exit.UNREACHABLE,
        )


def _client(
    url: str, token: str | None, transport: httpx.AsyncBaseTransport | None
) -> httpx.AsyncClient:
    with needs("management", "--server"):
        import httpx
    if not url.startswith(("http://", "https://")) or "@" in url.partition("://")[2]:
        raise CommandFailed(
            "--server: expected http(s)://host[:port] without user or password",
            do="Give the token or key with --token or HOPBACK_TOKEN.",
            code=Exit.USAGE,
        )
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S, transport=transport)


def _given(query: dict[str, object]) -> dict[str, str]:
    found = {name: value for name, value in query.items() if value not in ("", None, False)}
    return {name: "true" if value is True else str(value) for name, value in found.items()}


def _refusal(answer: httpx.Response) -> Exception:
    """The server's own words and remedy, with the exit code of their kind."""
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    problem = problem if isinstance(problem, dict) else {}
    status = answer.status_code
    text = str(problem.get("detail") or f"the server answered {status} {answer.reason_phrase}")
    if problem.get("code") == "unsafe":
        return UnsafeOperation(text)
    remedy = str(problem.get("remedy") or _REMEDIES.get(status) or _traced(problem))
    return CommandFailed(text, do=remedy, code=_CODES.get(status, Exit.FAILED))


def _traced(problem: dict[str, Any]) -> str:
    ident = problem.get("correlationId")
    return f"The server's log has more under {ident}." if ident else "Look at the server's log."
