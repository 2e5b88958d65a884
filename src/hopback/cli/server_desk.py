"""The desk of a server: the same documents, asked for by HTTP."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from hopback.cli.desk import Look
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.server_line import ServerLine

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator

    import httpx

    from hopback.cli.desk import Held
    from hopback.cli.documents import Document
    from hopback.deadletters.contract import Imported
    from hopback.deadletters.requests import Pace, Request

__all__ = ["ServerDesk"]

_QUEUES = "/admin/dlq/queues"
_OVERVIEW = "/admin/dlq/overview"
_COUNTS = ("messages", "messagesReady", "messagesUnacknowledged", "consumers")
_JOBS = "/admin/dlq/jobs"
_PAGE = 200
_MOST_HELD = 10_000


class ServerDesk:
    """A server's operations; jobs run there and go on when this process ends."""

    runs_jobs_here = False
    keeps_jobs = True

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._line = ServerLine(url, token, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self._line.__aexit__(*unused)

    async def queues(self) -> list[Document]:
        """Every dead-letter queue that the caller may see, by name."""
        found: list[Document] = (await self._line.get(_OVERVIEW))["items"]
        return [{**item, **{name: item["depth"][name] for name in _COUNTS}} for item in found]

    async def queue(self, name: str) -> Document:
        """One of them."""
        return await self._asked(f"{_QUEUES}/{_part(name)}")

    # --- looking

    @asynccontextmanager
    async def hold(self, look: Look) -> AsyncIterator[Held]:
        """Hold messages for looking at; they are given back however this ends."""
        session = await self._open(look, look.limit or 100)
        try:
            yield _Session(self._line, session["url"])
        finally:
            await self._line.delete(session["url"])

    async def _open(self, look: Look, limit: int) -> Document:
        body = {"limit": min(limit, _MOST_HELD), "force": look.forced, "lift": look.lift}
        found: Document = await self._line.post(f"{_QUEUES}/{_part(look.queue)}/sessions", body)
        return found

    async def lift(self, queue: str) -> None:
        """Lift the delivery limit of a queue: a short session does, if it has to."""
        async with self.hold(Look(queue, 1, lift=True)):
            pass

    async def groups(self, look: Look, by: str) -> Document:
        """Messages by what they have in common; as many as a session of the server holds."""
        session = await self._open(look, look.limit or _MOST_HELD)
        try:
            url = f"{session['url']}/groups"
            found = await self._line.get(url, by=by, filter=look.where)
        finally:
            await self._line.delete(session["url"])
        return {
            "queue": look.queue,
            "by": by,
            "items": found["items"],
            "seen": session["held"],
            # A server of an earlier version shows every group, and says no more of them.
            "matching": found.get("matching", sum(item["count"] for item in found["items"])),
            "complete": session["complete"],
            "notLookedInto": found.get("notLookedInto", 0),
        }

    def export(self, look: Look) -> AsyncIterator[bytes]:
        """Not by a server: its answers do not keep the types of headers."""
        raise _directly("export")

    async def import_lines(
        self, lines: AsyncIterable[bytes], queue: str | None, pace: Pace, reason: str
    ) -> Imported:
        """Not by a server."""
        raise _directly("import")

    # --- jobs

    async def plan(self, request: Request) -> Document:
        """What a job would do."""
        found: Document = await self._line.post(_JOBS, {**_order(request), "dryRun": True})
        return found

    async def start(self, request: Request) -> Document:
        """Begin a job at the server."""
        headers = {} if request.key is None else {"Idempotency-Key": request.key}
        found: Document = await self._line.post(_JOBS, _order(request), **headers)
        return found

    async def jobs(self, queue: str, active: bool, limit: int) -> list[Document]:
        """Jobs, the newest first."""
        found: list[Document] = (
            await self._line.get(_JOBS, queue=queue, active=active, limit=limit)
        )["items"]
        return found

    async def job(self, ident: str) -> Document:
        """One of them."""
        return await self._asked(_job(ident))

    def events(self, ident: str) -> AsyncIterator[Document]:
        """The job now and after every change, until it runs no more."""
        return self._line.events(_job(ident, "events"))

    async def failures(self, ident: str, cursor: int, limit: int) -> list[Document]:
        """What a job could not move or left out."""
        found = await self._line.get(_job(ident, "failures"), cursor=cursor, limit=limit)
        items: list[Document] = found["items"]
        return items

    async def pause(self, ident: str) -> Document:
        """Let a job wait."""
        return await self._told(_job(ident, "pause"))

    async def resume(self, ident: str) -> Document:
        """Let a job go on, at the server."""
        return await self._told(_job(ident, "resume"))

    async def cancel(self, ident: str) -> Document:
        """Let a job end."""
        return await self._told(_job(ident, "cancel"))

    async def interrupt(self, ident: str) -> Document:
        """Nothing: the job is the server's and goes on there."""
        return await self.job(ident)

    async def set_rate(self, ident: str, rate: float | None) -> Document:
        """Let a job go at another rate."""
        found: Document = await self._line.patch(_job(ident), {"rate": rate})
        return found

    async def retry_failures(self, ident: str, reason: str) -> Document:
        """Begin a job for what another could not move."""
        return await self._told(_job(ident, "retry-failures"), {"reason": reason})

    async def _asked(self, path: str) -> Document:
        found: Document = await self._line.get(path)
        return found

    async def _told(self, path: str, body: object = None) -> Document:
        found: Document = await self._line.post(path, body)
        return found


@dataclass(frozen=True, slots=True)
class _Session:
    """A browse session of the server."""

    line: ServerLine
    url: str

    async def letters(self, where: str, size: int) -> Document:
        """The letters that match, page after page."""
        items: list[Document] = []
        cursor: str | None = None
        while True:
            wanted = min(size - len(items), _PAGE)
            page = await self.line.get(
                f"{self.url}/messages", filter=where, cursor=cursor, limit=wanted
            )
            items += page["items"]
            cursor = page["cursor"]
            if cursor is None or len(items) >= size:
                unread = page.get("notLookedInto", 0)
                return {"items": items, "matching": page["matching"], "notLookedInto": unread}

    async def message(self, ident: str) -> Document:
        """One message with everything about it."""
        found: Document = await self.line.get(f"{self.url}/messages/{_part(ident)}")
        return found

    async def body(self, ident: str) -> bytes:
        """The bytes of one message."""
        return await self.line.content(f"{self.url}/messages/{_part(ident)}/body")


def _part(name: str) -> str:
    return quote(name, safe="")


def _job(ident: str, verb: str = "") -> str:
    return f"{_JOBS}/{_part(ident)}" + (f"/{verb}" if verb else "")


def _directly(verb: str) -> CommandFailed:
    return CommandFailed(
        f"a server does not {verb} messages",
        do="Say --broker URL instead of --server.",
        code=Exit.USAGE,
    )


def _order(request: Request) -> Document:
    """A request as the API has it."""
    from hopback.deadletters.requests import DiscardRequest, FromHead

    selection = request.selection
    limit = selection.limit if isinstance(selection, FromHead) else None
    pace = request.pace
    order: Document = {
        "queue": request.queue,
        "reason": request.reason,
        "selection": {"filter": selection.filter, "limit": limit},
        "pace": _without_none(
            {
                "rate": pace.rate,
                "inFlight": pace.in_flight,
                "ramp": list(pace.ramp),
                "watchSeconds": pace.watch_s,
            }
        ),
        "expectedCount": request.expected_count,
        "force": request.forced,
    }
    if isinstance(request, DiscardRequest):
        if request.export_to:
            raise CommandFailed(
                "--export-to names a file of this machine, and a server writes to its own",
                do="Leave it out: the plan says where the server writes. Or say --broker URL"
                " instead of --server.",
                code=Exit.USAGE,
            )
        return {**order, "kind": "discard", "confirm": request.confirm, "export": request.export}
    target = request.target
    return {
        **order,
        "kind": "re-drive",
        "maxRedrives": request.max_redrives,
        "target": {
            "kind": target.kind.value,
            "exchange": target.exchange,
            "routingKey": target.routing_key,
            "reset": target.reset,
        },
    }


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
