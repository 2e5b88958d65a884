"""The operations on dead letters by HTTP: the same interface, carried out by a server of `hopback serve`.

Needs the extra `management`. The server knows who asks by the token; jobs run there and go on when
this process ends. What it refuses is raised as the library itself would, in the server's words.
"""

from __future__ import annotations

from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self, TypeVar
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
    ServerFailed,
    ServerUnavailable,
    SessionOver,
    StoreDamaged,
    StoreUnavailable,
    UnsafeOperation,
)
from hopback.extras import needs
from hopback.ops.alerts.rules import AlertList, AlertTestResult
from hopback.ops.brokers.discovery import CandidateList
from hopback.ops.contract.codec import decode, encode, from_json, to_json
from hopback.ops.contract.requests import (
    BY_CALLER,
    BY_DESIGN,
    NEWEST,
    SMALL_WINDOW,
    UNHURRIED,
    WHOLE_QUEUE,
    EditRequest,
    GroupBy,
    LimitReason,
    NewRate,
    Renewal,
    RetryRequest,
    SessionRequest,
)
from hopback.ops.contract.search import SearchProgress, SearchRequest, survey_of
from hopback.ops.contract.surveys import ErrorOverview, QueueTrend
from hopback.ops.contract.values import (
    AuditList,
    EditedCopy,
    FailureList,
    Groups,
    Imported,
    Job,
    JobList,
    JobPlan,
    LimitPolicy,
    LookProgress,
    MessageView,
    Overview,
    Page,
    QueueDetail,
    SessionView,
    Survey,
)
from hopback.ops.notes.values import (
    FilterList,
    GroupNote,
    NewFilter,
    NewNote,
    NoteList,
    SavedFilter,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

    import httpx

    from hopback.ops.brokers.discovery import QueueAnswer
    from hopback.ops.contract.requests import (
        AuditQuery,
        Edit,
        JobRequest,
        Pace,
        Selection,
        Submission,
        Target,
        Who,
        Window,
    )
    from hopback.ops.contract.values import (
        AuditEntry,
        FailedMessage,
        OnProgress,
        QueueSummary,
    )

ValueT = TypeVar("ValueT")

_QUEUES = "/admin/dlq/queues"
_SESSIONS = "/admin/dlq/sessions"
_CANDIDATES = "/admin/dlq/candidates"
_JOBS = "/admin/dlq/jobs"
_SILENCE_S = 60.0  # a server at work says so every 15 s; a minute without a word is no answer
_LONG = "application/json, text/event-stream;q=0.9"
"""Accepted where it may take minutes: the answer, or how far it is until there is one."""
_MOST_BYTES = 256 * 1024 * 1024
"""Bytes of an answer, or of one line of a stream: a body of 128 MiB in base64 fits. More is cut off."""
_LARGEST_PAGE = 200  # what the server gives at once; more is asked for page by page
_BY_CODE: dict[str, type[OperationRefused]] = {
    "bad-filter": BadFilter, "count-mismatch": CountMismatch, "session-over": SessionOver,
    "job-conflict": JobConflict,
}  # fmt: skip
_BY_STATUS: dict[int, type[OperationRefused]] = {
    400: BadRequest, 401: NotAllowed, 403: NotAllowed, 404: NoSuch, 409: JobConflict,
    422: BadRequest,
}  # fmt: skip
_AWAY = frozenset({502, 503, 504})
_KNOWN_STATUSES = frozenset(HTTPStatus)
_REMEDIES = {
    401: "Give a token or API key of this server (--token, HOPBACK_TOKEN).",
    403: "Ask the administrators of the server for the role that is named.",
}


class RemoteDeadLetters:
    """The operations of a server; use it as an async context manager.

    `token` is a bearer token or an API key. `broker` names one of those that the server serves; without
    it is the first. A server that says nothing for `silence_s` seconds counts as gone; one that is at work,
    for however long, says so. BadRequest for a URL that is no server's.
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
        self._client = httpx.AsyncClient(
            base_url=self._url,
            headers=headers,
            timeout=silence_s,
            transport=transport,
            # A proxy of the environment would read the token; with TLS it only forwards.
            trust_env=url.startswith("https://"),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections. Sessions that are still open end at the server when their time is over."""
        await self._client.aclose()

    def acting_as(self, who: Who) -> Self:
        """The same: the server knows its caller by the token."""
        del who
        return self

    async def queues(self) -> tuple[QueueSummary, ...]:
        """Every dead-letter queue that the caller may see, by name."""
        return (await self.get(Overview, "/admin/dlq/overview")).items

    async def queue(self, name: str) -> QueueDetail:
        """One queue: exact depth, type, limit, cost of looking, origins, targets, active job."""
        return await self.get(QueueDetail, _path(_QUEUES, name))

    async def candidates(self) -> CandidateList:
        """Queues that have messages and no consumer, which nobody has said to hold dead letters."""
        return await self.get(CandidateList, _CANDIDATES)

    async def answer_candidate(self, said: QueueAnswer) -> None:
        """Add a queue to the dead-letter queues, or ignore it; kept, and audited."""
        await self.ask("PUT", _CANDIDATES, said)

    async def lift_limit(self, queue: str, *, reason: str = "") -> str:
        """Lift the queue's delivery limit by a policy of its own; the name of that policy."""
        path = _path(_QUEUES, queue, "lift-limit")
        return (await self.post(LimitPolicy, path, LimitReason(reason))).policy

    async def restore_limit(self, queue: str, *, reason: str = "") -> None:
        """Take that policy away again; none there is no error."""
        await self.ask("POST", _path(_QUEUES, queue, "restore-limit"), LimitReason(reason))

    async def open_session(
        self,
        queue: str,
        window: Window = SMALL_WINDOW,
        *,
        forced: bool = False,
        lift: bool = False,
        on_progress: OnProgress | None = None,
    ) -> SessionView:
        """Hold messages for looking at; `forced` accepts a danger, `lift` removes it by a policy."""
        asked = SessionRequest(
            window.limit, window.max_bytes, window.seconds, forced, lift, window.skip
        )
        path = _path(_QUEUES, queue, "sessions")
        return from_json(SessionView, await self._ask_long("POST", path, asked, on_progress))

    async def renew(self, session: str, seconds: float | None = None) -> SessionView:
        """Hold on for as long again from now, or for so many seconds."""
        return await self.post(SessionView, _path(_SESSIONS, session, "renew"), Renewal(seconds))

    async def release(self, session: str) -> None:
        """Give everything back, in order; a session that has ended already is no error."""
        try:
            await self._ask_long("DELETE", _path(_SESSIONS, session))
        except SessionOver:
            return

    async def messages(
        self, session: str, where: str = "", *, cursor: int | str = 0, size: int = 20
    ) -> Page:
        """Dead letters of a session that match, after the cursor; larger pages are put together."""
        path, found = _path(_SESSIONS, session, "messages"), Page((), 0, str(cursor))
        while found.next is not None and len(found.dead_letters) < size:
            limit = min(size - len(found.dead_letters), _LARGEST_PAGE)
            page = await self.get(Page, path, filter=where, cursor=found.next, limit=limit)
            found = structs.replace(page, dead_letters=(*found.dead_letters, *page.dead_letters))
        return found

    async def message(self, session: str, message: str) -> MessageView:
        """One message with everything about it, and where it would go; audited as shown."""
        return await self.get(MessageView, _path(_SESSIONS, session, "messages", message))

    async def body(self, session: str, message: str) -> bytes:
        """The bytes of one message; audited as shown."""
        return await self.ask("GET", _path(_SESSIONS, session, "messages", message, "body"))

    async def groups(
        self, session: str, by: GroupBy | str = GroupBy.FINGERPRINT, where: str = ""
    ) -> Groups:
        """The dead letters of a session by what they have in common, the largest group first."""
        path = _path(_SESSIONS, session, "groups")
        return await self.get(Groups, path, by=str(by), filter=where)

    async def survey(
        self,
        queue: str,
        by: GroupBy | str = GroupBy.FINGERPRINT,
        where: str = "",
        *,
        limit: int | None = None,
        forced: bool = False,
    ) -> Survey:
        """Group a whole queue in one pass at the server; costs what one session costs."""
        request = SearchRequest(where, (queue,), 0, forced, str(by), limit)
        return await survey_of(request, self.search(request))

    async def errors(
        self, *, survey: bool = False, on_progress: OnProgress | None = None
    ) -> ErrorOverview:
        """The errors of all queues, as they were surveyed last, or after another survey of all."""
        if survey:
            path = "/admin/dlq/errors/survey"
            return from_json(ErrorOverview, await self._ask_long("POST", path, None, on_progress))
        return await self.get(ErrorOverview, "/admin/dlq/errors")

    async def trend(self, queue: str) -> QueueTrend:
        """How the depth of a queue went, as far as the server kept it."""
        return await self.get(QueueTrend, _path(_QUEUES, queue, "trend"))

    async def search(self, request: SearchRequest) -> AsyncGenerator[SearchProgress, None]:
        """Look through whole queues at the server; close the generator to cancel."""
        async with aclosing(self._events("POST", "/admin/dlq/search", request)) as events:
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
        """What a job would do, without doing it."""
        _check_export(submission)
        asked = structs.replace(request, dry_run=True)
        return from_json(JobPlan, await self._ask_long("POST", _JOBS, asked, on_progress))

    async def start(
        self,
        request: JobRequest,
        submission: Submission = BY_CALLER,
        *,
        on_progress: OnProgress | None = None,
    ) -> Job:
        """Begin a job at the server and return it; it goes on by itself."""
        _check_export(submission)
        headers = {} if submission.key is None else {"Idempotency-Key": submission.key}
        return from_json(Job, await self._ask_long("POST", _JOBS, request, on_progress, headers))

    async def job(self, job: str) -> Job:
        """One job as it is now."""
        return await self.get(Job, _path(_JOBS, job))

    async def jobs(
        self, *, queue: str = "", active: bool = False, limit: int = 100
    ) -> tuple[Job, ...]:
        """Jobs, the newest first."""
        return (await self.get(JobList, _JOBS, queue=queue, active=active, limit=limit)).items

    async def failures(
        self, job: str, *, cursor: int = 0, limit: int = 100
    ) -> tuple[FailedMessage, ...]:
        """What a job could not move or left out, from number `cursor` on; all of it is in its queue."""
        path = _path(_JOBS, job, "failures")
        return (await self.get(FailureList, path, cursor=cursor, limit=limit)).items

    async def events(self, job: str) -> AsyncIterator[Job]:
        """The job now and after every change, until it runs no more."""
        async with aclosing(self._events("GET", _path(_JOBS, job, "events"))) as events:
            async for kind, data in events:
                if kind == "job":
                    yield from_json(Job, data)

    async def wait(self, job: str) -> Job:
        """Return when the job is neither running nor paused."""
        async for _job in self.events(job):
            pass
        return await self.job(job)

    async def pause(self, job: str) -> Job:
        """Let it finish what is in flight, then wait."""
        return await self.post(Job, _path(_JOBS, job, "pause"))

    async def resume(self, job: str) -> Job:
        """Let a paused job go on, or begin an interrupted or failed one again, at the server."""
        return await self.post(Job, _path(_JOBS, job, "resume"))

    async def cancel(self, job: str) -> Job:
        """Let it finish what is in flight, then give the rest back."""
        return await self.post(Job, _path(_JOBS, job, "cancel"))

    async def interrupt(self, job: str) -> Job:
        """Nothing: the job is the server's and goes on there."""
        return await self.job(job)

    async def set_rate(self, job: str, rate: float | None) -> Job:
        """Another rate, messages per second, from now on; None for no limit."""
        return from_json(Job, await self.ask("PATCH", _path(_JOBS, job), NewRate(rate)))

    async def retry_failures(self, job: str, *, reason: str = "") -> Job:
        """A new job for exactly what this one could not move; BadRequest if there is nothing."""
        return await self.post(Job, _path(_JOBS, job, "retry-failures"), RetryRequest(reason))

    async def edit_and_redrive(
        self,
        session: str,
        message: str,
        edit: Edit,
        *,
        target: Target = BY_DESIGN,
        reason: str = "",
    ) -> str:
        """Send a changed copy back; its new message id. The original stays where it is."""
        asked = EditRequest(edit=edit, reason=reason, target=target)
        path = _path(_SESSIONS, session, "messages", message, "edit")
        return (await self.post(EditedCopy, path, asked)).message_id

    async def export(
        self,
        queue: str,
        selection: Selection = WHOLE_QUEUE,
        *,
        forced: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """Messages as lines of JSON; nothing is removed."""
        import httpx

        # A filter that matches nothing has nothing to send, for as long as it takes.
        waits = httpx.Timeout(self._silence_s, read=None)
        said = {"selection": to_json(selection), "force": forced}
        path = _path(_QUEUES, queue, "export")
        try:
            async with self._client.stream("POST", path, json=said, timeout=waits) as answer:
                if answer.status_code >= 400:
                    raise _refusal(answer.status_code, await self._read(answer))
                async for line in self._lines(answer):
                    yield line + b"\n"
        except httpx.HTTPError as error:
            raise self._unavailable(error) from error

    async def import_lines(
        self,
        lines: AsyncIterable[bytes],
        *,
        queue: str | None = None,
        pace: Pace = UNHURRIED,
        reason: str = "",
    ) -> Imported:
        """Publish exported messages, each confirmed, into `queue`, which has to be named, at full speed."""
        import httpx

        if queue is None or pace.rate is not None:
            expected = (
                "a queue for them (--to), and no rate: a server imports into one queue at a time"
            )
            raise BadRequest("server", expected)

        async def content() -> AsyncIterator[bytes]:
            async for line in lines:
                yield line if line.endswith(b"\n") else line + b"\n"

        try:
            async with self._client.stream(
                "POST",
                _path(_QUEUES, queue, "import"),
                content=content(),
                params={"reason": reason},
                headers={"Content-Type": "application/x-ndjson"},
                timeout=httpx.Timeout(self._silence_s, read=None, write=None),
            ) as answer:
                said = await self._read(answer)
        except httpx.HTTPError as error:
            raise self._unavailable(error) from error
        if answer.status_code >= 400:
            raise _refusal(answer.status_code, said)
        return from_json(Imported, said)

    @property
    def notes(self) -> RemoteNotes:
        """Notes on groups, saved filters and what was done to a group."""
        return RemoteNotes(self)

    async def alerts(self) -> AlertList:
        """Alerts that fire, are about to, or were resolved within a week."""
        return await self.get(AlertList, "/admin/alerts")

    async def test_alert(self, target: str) -> AlertTestResult:
        """Send a target a message that says it is a test, and tell whether it was taken."""
        return await self.post(AlertTestResult, "/admin/alerts/test", {"target": target})

    async def audit(self, query: AuditQuery = NEWEST) -> tuple[AuditEntry, ...]:
        """What was done, the newest first."""
        asked = structs.asdict(query)
        asked["cursor"] = asked.pop("before")
        return (await self.get(AuditList, "/admin/audit", **asked)).items

    async def get(self, kind: type[ValueT], path: str, **query: Any) -> ValueT:
        """What the server answers, as a value of that kind."""
        given = {
            name: "true" if value is True else str(value)
            for name, value in query.items()
            if value not in ("", None, False)
        }
        return from_json(kind, await self.ask("GET", path, params=given))

    async def post(
        self,
        kind: type[ValueT],
        path: str,
        value: object = None,
        headers: dict[str, str] | None = None,
    ) -> ValueT:
        """What the server answers to a value, as one of that kind."""
        return from_json(kind, await self.ask("POST", path, value, headers=headers))

    async def ask(
        self,
        method: str,
        path: str,
        value: object = None,
        *,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """The bytes of the answer; what the server refuses is raised."""
        import httpx

        content = None if value is None else encode(value)
        said = {} if value is None else {"Content-Type": "application/json"}
        try:
            async with self._client.stream(
                method, path, content=content, params=params, headers={**said, **(headers or {})}
            ) as answer:
                found = await self._read(answer)
        except httpx.HTTPError as error:
            raise self._unavailable(error) from error
        if answer.status_code >= 400:
            raise _refusal(answer.status_code, found)
        return found

    async def _read(self, answer: httpx.Response) -> bytes:
        """The whole answer; ServerFailed if it is too long."""
        parts, size = [], 0
        async for part in answer.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > _MOST_BYTES:
                raise self._too_long("answer")
        return b"".join(parts)

    async def _lines(self, answer: httpx.Response) -> AsyncGenerator[bytes, None]:
        """The lines of an answer without their ends; ServerFailed if one is too long."""
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
        method: str,
        path: str,
        value: object = None,
        on_progress: OnProgress | None = None,
        headers: dict[str, str] | None = None,
    ) -> str:
        """The text of an answer that may take minutes; what the server tells meanwhile is passed on.

        Cancelled, it hangs up, and the server gives back what it holds for it.
        """
        said = {"Accept": _LONG, **(headers or {})}
        async with aclosing(self._events(method, path, value, said)) as events:
            async for kind, data in events:
                if kind == "answer":
                    return data
                if kind == "progress" and on_progress is not None:
                    on_progress(from_json(LookProgress, data))
        raise ServerUnavailable(f"the server at {self._url} ended its answer before it was whole")

    async def _events(
        self,
        method: str,
        path: str,
        value: object = None,
        headers: dict[str, str] | None = None,
    ) -> AsyncGenerator[tuple[str, str], None]:
        """What a server tells as it happens, by type; an answer that is told at once is an `answer`, too."""
        import httpx

        content = None if value is None else encode(value)
        said = {} if value is None else {"Content-Type": "application/json"}
        asked = self._client.stream(
            method, path, content=content, headers={**said, **(headers or {})}
        )
        try:
            async with asked as answer:
                if answer.status_code >= 400:
                    raise _refusal(answer.status_code, await self._read(answer))
                if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                    yield "answer", (await self._read(answer)).decode()
                    return
                kind = ""
                async for line in self._lines(answer):
                    name, _, data = line.decode(errors="replace").rstrip("\r").partition(":")
                    if name == "event":
                        kind = data.strip()
                    elif name == "data":
                        yield kind, _streamed_answer(data) if kind == "answer" else data
        except httpx.HTTPError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> ServerUnavailable:
        why = str(error) or type(error).__name__
        return ServerUnavailable(f"the server at {self._url} does not answer: {why}")


class RemoteNotes:
    """Notes, saved filters and history by a server."""

    def __init__(self, server: RemoteDeadLetters) -> None:
        self._server = server

    async def of(self, queue: str, group: str = "") -> tuple[GroupNote, ...]:
        """Notes on a group, or on every group of a queue, the newest first."""
        path = _path(_QUEUES, queue, "notes")
        return (await self._server.get(NoteList, path, group=group)).items

    async def add(self, queue: str, note: NewNote) -> GroupNote:
        """Write a note; BadRequest where there are too many."""
        return await self._server.post(GroupNote, _path(_QUEUES, queue, "notes"), note)

    async def remove(self, queue: str, note: str) -> None:
        """Take a note away; NoSuch if there is none."""
        await self._server.ask("DELETE", _path(_QUEUES, queue, "notes", note))

    async def history(self, queue: str, group: str = "") -> tuple[AuditEntry, ...]:
        """What was done to a group, or to a queue, the newest first."""
        path = _path(_QUEUES, queue, "history")
        return (await self._server.get(AuditList, path, group=group)).items

    async def filters(self, queue: str) -> tuple[SavedFilter, ...]:
        """The saved filters of a queue, by name."""
        return (await self._server.get(FilterList, _path(_QUEUES, queue, "filters"))).items

    async def save_filter(self, queue: str, said: NewFilter) -> SavedFilter:
        """Save a filter under a name; BadFilter if it cannot be read."""
        return await self._server.post(SavedFilter, _path(_QUEUES, queue, "filters"), said)

    async def remove_filter(self, queue: str, name: str) -> None:
        """Take a saved filter away; NoSuch if there is none."""
        await self._server.ask("DELETE", _path(_QUEUES, queue, "filters", name))


def _path(*parts: str) -> str:
    first, *names = parts
    return "/".join([first, *(quote(name, safe="") for name in names)])


def _check_export(submission: Submission) -> None:
    """A server writes to files of its own: one that is named here would be silently forgotten."""
    if submission.export_to:
        raise BadRequest(
            "exportTo (--export-to)",
            "nothing for a server, which writes to its own files; its plan says where",
        )


class _StreamedAnswer(Struct, frozen=True):
    """The last event of what took long: the answer as it would have been without events."""

    status: int
    body: Raw


def _streamed_answer(data: str) -> str:
    """The body of an answer that came as an event; what the server refused is raised."""
    found = msgspec.json.decode(data, type=_StreamedAnswer)
    if found.status >= 400:
        raise _refusal_of(found.status, decode(bytes(found.body)))
    return bytes(found.body).decode()


def _refusal(status: int, content: bytes) -> HopbackError:
    """The server's problem document as the library's error of that kind."""
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
        return UnsafeOperation(text)
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
    return ServerFailed(f"{text} (its log has more under {logged})" if logged else text)
