"""The table of endpoints that the server and its HTTP client share.

The server implements each endpoint, and the client used with `--server` calls it. The OpenAPI
document and permission checks are derived from the table. If an endpoint has an `operation`, this
is the method of `DeadLetters` with the same name. The names in the path are its first arguments.
The fields of query and body are its other arguments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hopback.ops.alerts.values import AlertList, AlertTestResult
from hopback.ops.contract.candidates import CandidateList, QueueAnswer
from hopback.ops.contract.interface import DeadLetters
from hopback.ops.contract.queue_rules import (
    ANSWERED_QUEUES,
    COPY_TARGETS,
    DEAD_LETTER_QUEUE,
    EVERY_QUEUE,
    JOB_QUEUE,
    JOB_TARGETS,
    PATH_QUEUE,
    REDRIVE_TARGETS,
    REQUEST_QUEUE,
    SEARCHED_QUEUES,
    SESSION_QUEUE,
    STEERED_JOB,
    VISIBLE_QUEUES,
    QueueRule,
)
from hopback.ops.contract.requests import (
    AlertTestRequest,
    AuditQuery,
    EditRequest,
    ExportRequest,
    FailuresQuery,
    GroupQuery,
    ImportQuery,
    JobRequest,
    JobsQuery,
    LimitReason,
    MessagesQuery,
    NewRate,
    NotesQuery,
    Renewal,
    RetryRequest,
    SessionRequest,
)
from hopback.ops.contract.roles import Role
from hopback.ops.contract.search import SearchRequest
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
    MessageView,
    Overview,
    Page,
    QueueDetail,
    SessionView,
)
from hopback.ops.notes.values import (
    FilterList,
    GroupNote,
    GroupNotes,
    NewFilter,
    NewNote,
    NoteList,
    SavedFilter,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


JSON = "application/json"
"""The media type of most responses."""
EVENTS = "text/event-stream"
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"


class Empty(Struct, frozen=True, forbid_unknown_fields=True):
    """A query without parameters."""


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """An endpoint of the API. `name` is its operation id in OpenAPI.

    If `role` is None, all authenticated callers can use it. If `public` is True, unauthenticated
    callers can also use it.
    """

    name: str
    method: str
    path: str
    role: Role | None
    queues: tuple[QueueRule, ...]
    """The queues that a request affects. The caller needs the role for each of them."""
    operation: str = ""
    """The method of `DeadLetters` that implements the endpoint."""
    query: type = Empty
    body: Any = None
    body_optional: bool = False
    answer: Any = None
    result: str = ""
    """The field of the response that contains the result of the operation. If it is empty, the
    result is the whole response.
    """
    status: int = 200
    location: str = ""
    """The path of the created resource for the Location header. `{id}` is replaced with the id in
    the response.
    """
    errors: tuple[int, ...] = ()
    media: tuple[str, ...] = (JSON,)
    headers: tuple[tuple[str, str], ...] = ()
    """The headers that a client can send, with their descriptions."""
    further: tuple[tuple[int, Any], ...] = ()
    """Other successful responses, with status and type."""
    takes_long: bool = False
    """A request can take minutes and is cancelled if the client disconnects. Clients that accept
    events receive its progress.
    """
    public: bool = False
    is_heavy: bool = False
    """A request can need much time or memory. The number of such requests is limited."""

    @property
    def path_names(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)

    @property
    def interface(self) -> Any:
        """The method of the interface that implements the operation."""
        owner, _, name = self.operation.rpartition(".")
        return getattr(GroupNotes if owner == "notes" else DeadLetters, name)

    def read_arguments(
        self, given: Sequence[object], named: Mapping[str, object]
    ) -> tuple[list[str], Any, Any]:
        """Return the path parameters, the query and the body for calling an operation with these
        arguments.
        """
        bound = dict(signature(self.interface).bind(None, *given, **named).arguments)
        del bound["self"]
        path = [str(bound.pop(next(iter(bound)))) for _ in self.path_names]
        return path, _gather(self.query, bound), _gather(self.body, bound)

    def write_arguments(self, *parts: object) -> tuple[list[object], dict[str, object]]:
        """Return the arguments of the operation that are contained in a query and a body."""
        known = signature(self.interface).parameters
        whole: list[object] = []
        fields: dict[str, object] = {}
        for part in parts:
            names = getattr(part, "__struct_fields__", ())
            if known.keys() >= set(names):
                fields |= {name: getattr(part, name) for name in names}
            else:
                whole.append(part)
        return whole, fields


def _gather(kind: Any, given: Mapping[str, object]) -> Any:
    """Return the argument of this type, or create it from the arguments with its field names."""
    if kind is None or kind is Empty:
        return None
    for value in given.values():
        if isinstance(value, kind):
            return value
    return kind(**{name: given[name] for name in kind.__struct_fields__ if name in given})


_QUEUE = "/admin/dlq/queues/{queue}"
_SESSION = "/admin/dlq/sessions/{session}"
_MESSAGE = f"{_SESSION}/messages/{{message}}"
_JOBS = "/admin/dlq/jobs"
_JOB = f"{_JOBS}/{{job}}"
_KEY = (("Idempotency-Key", "A request with the same key returns the existing job."),)

# fmt: off
OVERVIEW = ApiEndpoint("showOverview", "GET", "/admin/dlq/overview", Role.VIEWER, (VISIBLE_QUEUES,),
    operation="queues", answer=Overview, result="items")
CANDIDATES = ApiEndpoint(
    "listCandidates", "GET", "/admin/dlq/candidates", Role.VIEWER, (VISIBLE_QUEUES,),
    operation="candidates", answer=CandidateList)
ANSWER_CANDIDATE = ApiEndpoint(
    "answerCandidate", "PUT", "/admin/dlq/candidates", Role.ADMIN, (ANSWERED_QUEUES,),
    operation="answer_candidate", body=QueueAnswer, status=204, errors=(404,))
QUEUE = ApiEndpoint("showQueue", "GET", _QUEUE, Role.VIEWER, (PATH_QUEUE,),
    operation="queue", answer=QueueDetail)
ERRORS = ApiEndpoint("listErrors", "GET", "/admin/dlq/errors", Role.OPERATOR, (EVERY_QUEUE,),
    operation="errors", answer=ErrorOverview)
SURVEY = ApiEndpoint(
    "surveyQueues", "POST", "/admin/dlq/errors/survey", Role.OPERATOR, (EVERY_QUEUE,),
    answer=ErrorOverview, takes_long=True)
TREND = ApiEndpoint("showTrend", "GET", f"{_QUEUE}/trend", Role.VIEWER, (PATH_QUEUE,),
    operation="trend", answer=QueueTrend)
SEARCH = ApiEndpoint(
    "searchMessages", "POST", "/admin/dlq/search", Role.OPERATOR, (SEARCHED_QUEUES,),
    body=SearchRequest, media=(EVENTS,), errors=(404, 409), is_heavy=True)
LIFT_LIMIT = ApiEndpoint("liftLimit", "POST", f"{_QUEUE}/lift-limit", Role.OPERATOR, (PATH_QUEUE,),
    operation="lift_limit", body=LimitReason, body_optional=True, answer=LimitPolicy,
    result="policy", errors=(409,))
RESTORE_LIMIT = ApiEndpoint(
    "restoreLimit", "POST", f"{_QUEUE}/restore-limit", Role.OPERATOR, (PATH_QUEUE,),
    operation="restore_limit", body=LimitReason, body_optional=True, status=204, errors=(409,))
OPEN_SESSION = ApiEndpoint("openSession", "POST", f"{_QUEUE}/sessions", Role.OPERATOR, (PATH_QUEUE,),
    operation="open_session", body=SessionRequest, body_optional=True, answer=SessionView, status=201,
    location="/admin/dlq/sessions/{id}", errors=(409,), takes_long=True)
SESSION = ApiEndpoint("showSession", "GET", _SESSION, Role.OPERATOR, (SESSION_QUEUE,),
    answer=SessionView)
RELEASE = ApiEndpoint("releaseSession", "DELETE", _SESSION, Role.OPERATOR, (SESSION_QUEUE,),
    status=204, takes_long=True)
RENEW = ApiEndpoint("renewSession", "POST", f"{_SESSION}/renew", Role.OPERATOR, (SESSION_QUEUE,),
    operation="renew", body=Renewal, body_optional=True, answer=SessionView)
MESSAGES = ApiEndpoint(
    "listMessages", "GET", f"{_SESSION}/messages", Role.OPERATOR, (SESSION_QUEUE,),
    operation="messages", query=MessagesQuery, answer=Page)
MESSAGE = ApiEndpoint("showMessage", "GET", _MESSAGE, Role.OPERATOR, (SESSION_QUEUE,),
    operation="message", answer=MessageView)
BODY = ApiEndpoint("downloadBody", "GET", f"{_MESSAGE}/body", Role.OPERATOR, (SESSION_QUEUE,),
    operation="body", media=(BYTES,))
EDIT = ApiEndpoint(
    "editAndRedrive", "POST", f"{_MESSAGE}/edit", Role.OPERATOR, (SESSION_QUEUE, COPY_TARGETS),
    operation="edit_and_redrive", body=EditRequest, answer=EditedCopy, result="message_id",
    status=201, errors=(409,))
GROUPS = ApiEndpoint("listGroups", "GET", f"{_SESSION}/groups", Role.OPERATOR, (SESSION_QUEUE,),
    operation="groups", query=GroupQuery, answer=Groups)
JOBS = ApiEndpoint("listJobs", "GET", _JOBS, Role.VIEWER, (VISIBLE_QUEUES,),
    operation="jobs", query=JobsQuery, answer=JobList, result="items")
START_JOB = ApiEndpoint("createJob", "POST", _JOBS, Role.OPERATOR, (REQUEST_QUEUE, REDRIVE_TARGETS),
    body=JobRequest, answer=Job, status=202, location="/admin/dlq/jobs/{id}", errors=(404, 409),
    headers=_KEY, further=((200, JobPlan),), takes_long=True, is_heavy=True)
JOB = ApiEndpoint("showJob", "GET", _JOB, Role.VIEWER, (JOB_QUEUE,), operation="job", answer=Job)
FAILURES = ApiEndpoint("listFailures", "GET", f"{_JOB}/failures", Role.VIEWER, (JOB_QUEUE,),
    operation="failures", query=FailuresQuery, answer=FailureList, result="items")
FOLLOW_JOB = ApiEndpoint("followJob", "GET", f"{_JOB}/events", Role.VIEWER, (JOB_QUEUE,),
    media=(EVENTS,))
CANCEL_JOB = ApiEndpoint("cancelJob", "POST", f"{_JOB}/cancel", Role.OPERATOR, (STEERED_JOB,),
    operation="cancel", answer=Job, errors=(409,))
PAUSE_JOB = ApiEndpoint("pauseJob", "POST", f"{_JOB}/pause", Role.OPERATOR, (STEERED_JOB,),
    operation="pause", answer=Job, errors=(409,))
RESUME_JOB = ApiEndpoint(
    "resumeJob", "POST", f"{_JOB}/resume", Role.OPERATOR, (STEERED_JOB, JOB_TARGETS),
    operation="resume", answer=Job, errors=(409,))
RETRY_FAILURES = ApiEndpoint(
    "retryFailures", "POST", f"{_JOB}/retry-failures", Role.OPERATOR, (STEERED_JOB, JOB_TARGETS),
    operation="retry_failures", body=RetryRequest, answer=Job, status=202,
    location="/admin/dlq/jobs/{id}", errors=(409,))
SET_RATE = ApiEndpoint("setRate", "PATCH", _JOB, Role.OPERATOR, (STEERED_JOB,),
    operation="set_rate", body=NewRate, answer=Job, errors=(409,))
EXPORT = ApiEndpoint("exportQueue", "POST", f"{_QUEUE}/export", Role.OPERATOR, (PATH_QUEUE,),
    body=ExportRequest, body_optional=True, media=(NDJSON,), errors=(400, 404, 409), is_heavy=True)
IMPORT = ApiEndpoint("importLines", "POST", f"{_QUEUE}/import", Role.OPERATOR, (PATH_QUEUE,),
    query=ImportQuery, answer=Imported, errors=(404, 413), is_heavy=True)
NOTES = ApiEndpoint("listNotes", "GET", f"{_QUEUE}/notes", Role.VIEWER, (DEAD_LETTER_QUEUE,),
    operation="notes.of", query=NotesQuery, answer=NoteList, result="items")
ADD_NOTE = ApiEndpoint("addNote", "POST", f"{_QUEUE}/notes", Role.OPERATOR, (DEAD_LETTER_QUEUE,),
    operation="notes.add", body=NewNote, answer=GroupNote, status=201, errors=(404,))
REMOVE_NOTE = ApiEndpoint(
    "removeNote", "DELETE", f"{_QUEUE}/notes/{{note}}", Role.OPERATOR, (DEAD_LETTER_QUEUE,),
    operation="notes.remove", status=204, errors=(404,))
HISTORY = ApiEndpoint("history", "GET", f"{_QUEUE}/history", Role.OPERATOR, (DEAD_LETTER_QUEUE,),
    operation="notes.history", query=NotesQuery, answer=AuditList, result="items", errors=(404,))
FILTERS = ApiEndpoint("listFilters", "GET", f"{_QUEUE}/filters", Role.VIEWER, (DEAD_LETTER_QUEUE,),
    operation="notes.filters", answer=FilterList, result="items", errors=(404,))
SAVE_FILTER = ApiEndpoint(
    "saveFilter", "POST", f"{_QUEUE}/filters", Role.OPERATOR, (DEAD_LETTER_QUEUE,),
    operation="notes.save_filter", body=NewFilter, answer=SavedFilter, status=201,
    errors=(400, 404))
REMOVE_FILTER = ApiEndpoint(
    "removeFilter", "DELETE", f"{_QUEUE}/filters/{{name}}", Role.OPERATOR, (DEAD_LETTER_QUEUE,),
    operation="notes.remove_filter", status=204, errors=(404,))
ALERTS = ApiEndpoint("listAlerts", "GET", "/admin/alerts", Role.VIEWER, (VISIBLE_QUEUES,),
    operation="alerts", answer=AlertList)
TEST_ALERT = ApiEndpoint("testAlert", "POST", "/admin/alerts/test", Role.ADMIN, (EVERY_QUEUE,),
    operation="test_alert", body=AlertTestRequest, answer=AlertTestResult, errors=(404,))
AUDIT = ApiEndpoint("listAudit", "GET", "/admin/audit", Role.ADMIN, (EVERY_QUEUE,),
    operation="audit", query=AuditQuery, answer=AuditList, result="items")
# fmt: on

SHARED = tuple(value for value in list(globals().values()) if isinstance(value, ApiEndpoint))
"""All endpoints above."""

BY_OPERATION = {row.operation: row for row in SHARED if row.operation}
