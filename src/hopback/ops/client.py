"""Operations on dead letters that are performed by a server (`hopback serve`).

This requires the extra `ops`. Operations are called by their endpoints in
`contract.endpoints`. The server identifies the caller by the token. Jobs run on the server and
continue when this process ends. Errors of the server are raised as errors of the library with the
same text.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct, structs

from hopback.errors import (
    BadFilter,
    BadRequest,
    CountMismatch,
    HopbackError,
    JobConflict,
    NoSuch,
    NotAllowed,
    OperationRefused,
    QueueBusy,
    ServerFailed,
    ServerUnavailable,
    SessionOver,
    StoreDamaged,
    StoreUnavailable,
    UnsafeOperation,
)
from hopback.extras import needs
from hopback.ops.contract import endpoints
from hopback.ops.contract.codec import decode, encode, from_json
from hopback.ops.contract.endpoints import BY_OPERATION, BYTES, EVENTS, JSON, NDJSON, ApiEndpoint
from hopback.ops.contract.requests import (
    BY_CALLER,
    LARGEST_PAGE,
    UNHURRIED,
    WHOLE_QUEUE,
    ExportRequest,
    ImportQuery,
    JobRequest,
    Pace,
    Selection,
    Submission,
    Who,
)
from hopback.ops.contract.search import SearchProgress, SearchRequest
from hopback.ops.contract.surveys import ErrorOverview
from hopback.ops.contract.values import (
    Imported,
    Job,
    JobPlan,
    LookProgress,
    OnProgress,
    Page,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable

    import httpx


_SILENCE_S = 60.0  # seconds without data. A server sends an event at least every 15 s.
_LONG = f"{JSON}, {EVENTS};q=0.9"
"""The accepted media types for endpoints that can take minutes. They return a response or events."""
_MOST_BYTES = 256 * 1024 * 1024
"""Maximum bytes of a response, or of a line in a stream. A body of 128 MiB in base64 fits."""
_BY_CODE: dict[str, type[OperationRefused]] = {
    "bad-filter": BadFilter, "count-mismatch": CountMismatch, "session-over": SessionOver,
    "job-conflict": JobConflict, "queue-busy": QueueBusy,
}  # fmt: skip
_BY_STATUS: dict[int, type[OperationRefused]] = {
    400: BadRequest, 401: NotAllowed, 403: NotAllowed, 404: NoSuch, 409: JobConflict,
    422: BadRequest,
}  # fmt: skip
_AWAY = frozenset({502, 503, 504})
_KNOWN_STATUSES = frozenset(HTTPStatus)
_REMEDIES = {
    401: "Specify a token or API key of this server (--token, HOPBACK_TOKEN).",
    403: "Ask the administrators of the server for the role.",
}


class RemoteDeadLetters:
    """Implements `DeadLetters` with a server. Use it as an async context manager. The interface
    describes the methods.

    `token` is a bearer token or an API key. `broker` is the name of a broker on the server. The
    default is the first one. Methods raise ServerUnavailable if the server does not send any data
    for `silence_s` seconds. Raises BadRequest if the URL is not an HTTP address.
    """

    runs_jobs_here = False
    keeps_jobs = True

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        broker: str | None = None,
        silence_s: float = _SILENCE_S,
    ) -> None:
        with needs("ops", "--server"):
            import httpx
        if not url.startswith(("http://", "https://")) or "@" in url.partition("://")[2]:
            raise BadRequest("server", "http(s)://host[:port] without user or password")
        self._url = url.rstrip("/")
        if broker is not None:
            self._url += f"/brokers/{quote(broker, safe='')}"
        self._silence_s = silence_s
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            self._client = httpx.AsyncClient(
                base_url=self._url,
                headers=headers,
                timeout=silence_s,
                transport=transport,
                # A proxy from the environment could read the token, unless TLS is used.
                trust_env=url.startswith("https://"),
            )
        except httpx.InvalidURL as error:
            raise BadRequest("server", f"a valid address: {error}") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. The server ends sessions that are still open when they expire."""
        await self._client.aclose()

    def on_behalf_of(self, who: Who) -> Self:
        del who
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the operation with this name, if it has an endpoint."""
        row = BY_OPERATION.get(name)
        if row is None:
            raise AttributeError(name)
        return partial(self.call, row)

    @property
    def notes(self) -> RemoteNotes:
        return RemoteNotes(self)

    async def call(
        self,
        row: ApiEndpoint,
        *given: object,
        on_progress: OnProgress | None = None,
        **named: object,
    ) -> Any:
        """Call an operation of the server with the arguments of the interface."""
        path, query, body = row.read_arguments(given, named)
        found: bytes | str
        if row.takes_long:
            found = await self._ask_long(row, *path, body=body, on_progress=on_progress)
        else:
            found = await self._ask(row, *path, query=query, body=body)
        if row.answer is None:
            return found if BYTES in row.media else None
        answer = from_json(row.answer, found)
        return getattr(answer, row.result) if row.result else answer

    async def release(self, session: str) -> None:
        try:
            await self._ask_long(endpoints.RELEASE, session)
        except SessionOver:
            return

    async def messages(
        self, session: str, where: str = "", *, cursor: int | str = 0, limit: int = 20
    ) -> Page:
        # The size of a response is limited, so a larger page requires several requests.
        found = Page((), 0, str(cursor))
        while found.next is not None and len(found.dead_letters) < limit:
            size = min(limit - len(found.dead_letters), LARGEST_PAGE)
            page = await self.call(
                endpoints.MESSAGES, session, where, cursor=found.next, limit=size
            )
            found = structs.replace(page, dead_letters=(*found.dead_letters, *page.dead_letters))
        return found

    async def errors(
        self, *, survey: bool = False, on_progress: OnProgress | None = None
    ) -> ErrorOverview:
        row = endpoints.SURVEY if survey else endpoints.ERRORS
        return from_json(ErrorOverview, await self._ask_long(row, on_progress=on_progress))

    async def search(self, request: SearchRequest) -> AsyncGenerator[SearchProgress, None]:
        async with aclosing(self._events(endpoints.SEARCH, body=request)) as events:
            async for kind, data in events:
                if kind == "search":
                    yield from_json(SearchProgress, data)

    async def plan(
        self,
        request: JobRequest,
        submission: Submission = BY_CALLER,
        *,
        on_progress: OnProgress | None = None,
    ) -> JobPlan:
        asked = structs.replace(request, dry_run=True)
        return from_json(JobPlan, await self._submit(asked, submission, on_progress))

    async def start(
        self,
        request: JobRequest,
        submission: Submission = BY_CALLER,
        *,
        on_progress: OnProgress | None = None,
    ) -> Job:
        return from_json(Job, await self._submit(request, submission, on_progress))

    async def _submit(
        self, request: JobRequest, submission: Submission, on_progress: OnProgress | None
    ) -> str:
        if submission.export_to:
            raise BadRequest(
                "exportTo (--export-to)",
                "no file with --server: the server chooses the file, and its plan contains the path",
            )
        key = submission.key
        headers = None if key is None else {"Idempotency-Key": key}
        return await self._ask_long(
            endpoints.START_JOB, body=request, headers=headers, on_progress=on_progress
        )

    async def events(self, job: str) -> AsyncIterator[Job]:
        async with aclosing(self._events(endpoints.FOLLOW_JOB, job)) as events:
            async for kind, data in events:
                if kind == "job":
                    yield from_json(Job, data)

    async def wait(self, job: str) -> Job:
        async for _job in self.events(job):
            pass
        return await self.interrupt(job)

    async def interrupt(self, job: str) -> Job:
        """Return the job, which continues on the server."""
        found: Job = await self.call(endpoints.JOB, job)
        return found

    async def export(
        self, queue: str, selection: Selection = WHOLE_QUEUE, *, force: bool = False
    ) -> AsyncGenerator[bytes, None]:
        import httpx

        # The server does not send any data until a message matches the filter.
        waits = httpx.Timeout(self._silence_s, read=None)
        asked = self._request(endpoints.EXPORT, queue, body=ExportRequest(selection, force))
        async with self._answer_to(self._client.stream(**asked, timeout=waits)) as answer:
            async for line in self._lines(answer):
                yield line + b"\n"

    async def import_lines(
        self,
        lines: AsyncIterable[bytes],
        *,
        queue: str | None = None,
        pace: Pace = UNHURRIED,
        reason: str = "",
    ) -> Imported:
        """Import messages. A server requires a `queue` and does not support a rate limit."""
        import httpx

        if queue is None or pace.rate is not None:
            expected = (
                "a queue for them (--to), and no rate: a server imports into one queue at a time"
            )
            raise BadRequest("server", expected)

        async def content() -> AsyncIterator[bytes]:
            async for line in lines:
                yield line if line.endswith(b"\n") else line + b"\n"

        waits = httpx.Timeout(self._silence_s, read=None, write=None)
        asked = self._request(endpoints.IMPORT, queue, query=ImportQuery(reason))
        asked |= {"content": content(), "headers": {"Content-Type": NDJSON}, "timeout": waits}
        async with self._answer_to(self._client.stream(**asked)) as answer:
            return from_json(Imported, await self._read(answer))

    def _request(
        self,
        row: ApiEndpoint,
        *path: str,
        query: object = None,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the arguments of a request to an endpoint."""
        names = dict(zip(row.path_names, (quote(one, safe="") for one in path), strict=True))
        asked: dict[str, Any] = {
            "method": row.method,
            "url": row.path.format(**names),
            "headers": headers or {},
        }
        if query is not None:
            asked["params"] = msgspec.to_builtins(query)
        if body is not None:
            asked["content"] = encode(body)
            asked["headers"] = {"Content-Type": JSON, **asked["headers"]}
        return asked

    @asynccontextmanager
    async def _answer_to(
        self, asked: AbstractAsyncContextManager[httpx.Response]
    ) -> AsyncGenerator[httpx.Response, None]:
        """Send a request and yield the response. Raises the error that the server reports."""
        import httpx

        try:
            async with asked as answer:
                if answer.status_code >= 400:
                    raise _refusal(answer.status_code, await self._read(answer))
                yield answer
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise ServerUnavailable(f"the server at {self._url} does not answer: {why}") from error

    async def _ask(self, row: ApiEndpoint, *path: str, **asked: Any) -> bytes:
        request = self._request(row, *path, **asked)
        async with self._answer_to(self._client.stream(**request)) as answer:
            return await self._read(answer)

    async def _read(self, answer: httpx.Response) -> bytes:
        """Read the whole response. Raises ServerFailed if it is too long."""
        parts, size = [], 0
        async for part in answer.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > _MOST_BYTES:
                raise self._too_long("answer")
        return b"".join(parts)

    async def _lines(self, answer: httpx.Response) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a response. Raises ServerFailed if a line is too long."""
        begun: list[bytes] = []
        size = 0
        async for part in answer.aiter_bytes():
            first, *others = part.split(b"\n")
            begun.append(first)
            size += len(first)
            for following in others:
                yield b"".join(begun)
                begun, size = [following], len(following)
            if size > _MOST_BYTES:
                raise self._too_long("line")

    def _too_long(self, what: str) -> ServerFailed:
        return ServerFailed(
            f"the server at {self._url} sent more than {_MOST_BYTES >> 20} MiB in one {what}"
        )

    async def _ask_long(
        self,
        row: ApiEndpoint,
        *path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> str:
        """Return the text of a response that can take minutes. `on_progress` receives progress
        events.

        If the call is cancelled, it disconnects and the server requeues the messages it holds.
        """
        accepted = {"Accept": _LONG, **(headers or {})}
        async with aclosing(self._events(row, *path, body=body, headers=accepted)) as events:
            async for kind, data in events:
                if kind == "answer":
                    return data
                if kind == "progress" and on_progress is not None:
                    on_progress(from_json(LookProgress, data))
        raise ServerUnavailable(f"the server at {self._url} sent an incomplete answer")

    async def _events(
        self, row: ApiEndpoint, *path: str, **asked: Any
    ) -> AsyncGenerator[tuple[str, str], None]:
        """Yield the type and data of all events. If the response is not a stream, yield it as an
        `answer` event.
        """
        request = self._request(row, *path, **asked)
        async with self._answer_to(self._client.stream(**request)) as answer:
            if not answer.headers.get("content-type", "").startswith(EVENTS):
                yield "answer", (await self._read(answer)).decode()
                return
            kind = ""
            async for line in self._lines(answer):
                name, _, data = line.decode(errors="replace").rstrip("\r").partition(":")
                if name == "event":
                    kind = data.strip()
                elif name == "data":
                    yield kind, _answer_in_event(data) if kind == "answer" else data


class RemoteNotes:
    """Notes, saved filters and history that are stored on a server."""

    def __init__(self, server: RemoteDeadLetters) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the operation with this name, if it has an endpoint."""
        row = BY_OPERATION.get(f"notes.{name}")
        if row is None:
            raise AttributeError(name)
        return partial(self._server.call, row)


class _StreamedAnswer(Struct, frozen=True):
    """The last event of a long request, which contains the response."""

    status: int
    body: Raw


def _answer_in_event(data: str) -> str:
    """Return the body of a response in an event. Raises the error that the server reports."""
    found = msgspec.json.decode(data, type=_StreamedAnswer)
    if found.status >= 400:
        raise _refusal_of(found.status, decode(bytes(found.body)))
    return bytes(found.body).decode()


def _refusal(status: int, content: bytes) -> HopbackError:
    """Convert a problem document of the server to an error of the library."""
    try:
        problem = decode(content)
    except (ValueError, msgspec.DecodeError):
        problem = {}
    return _refusal_of(status, problem)


def _refusal_of(status: int, problem: object) -> HopbackError:
    problem = problem if isinstance(problem, dict) else {}
    code = str(problem.get("code", ""))
    phrase = HTTPStatus(status).phrase if status in _KNOWN_STATUSES else ""
    text = str(problem.get("detail") or f"the server answered {status} {phrase}".rstrip())
    remedy = str(problem.get("remedy") or _REMEDIES.get(status, ""))
    if code == "unsafe":
        return UnsafeOperation(text, can_lift=problem.get("canLift") is not False)
    if code == "database-damaged":
        return StoreDamaged(f"{text.rstrip('.')} on the server")
    if code == "database-unavailable":
        return StoreUnavailable(f"{text.rstrip('.')} on the server")
    if status in _AWAY:
        return ServerUnavailable(text)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is not None:
        return kind.in_words(text, remedy)
    logged = problem.get("correlationId")
    return ServerFailed(f"{text} (its log contains details for {logged})" if logged else text)
