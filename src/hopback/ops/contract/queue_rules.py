"""Rules that determine which queues a request reads, writes or configures.

Every API endpoint and every action of a page lists its rules. They are evaluated before the request
is answered. The caller needs the role of the endpoint for each queue that a rule returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hopback.ops.contract.requests import (
    BY_DESIGN,
    EditRequest,
    JobKind,
    JobRequest,
    RedriveRequest,
)
from hopback.ops.contract.roles import Principal, Role

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from hopback.ops.contract.candidates import QueueAnswer
    from hopback.ops.contract.search import SearchRequest
    from hopback.ops.contract.values import Job
    from hopback.ops.operations import Operations


BodyT = TypeVar("BodyT", covariant=True)


class TouchingRequest(Protocol):
    """The parts of an API call or a page visit that rules can read."""

    @property
    def principal(self) -> Principal: ...
    @property
    def operations(self) -> Operations: ...
    @property
    def path(self) -> Mapping[str, str]: ...


class RequestBody(TouchingRequest, Protocol[BodyT]):
    """An API call with its body."""

    @property
    def body(self) -> BodyT: ...


@dataclass(frozen=True, slots=True)
class QueueRule:
    """A rule that returns queue names. `text` completes the sentence "needs the role for …"."""

    text: str
    find: Callable[[Any], Awaitable[Iterable[str] | None]] | None = None
    """Returns the queues of a request. If they are unknown it returns None, and the role is
    required for all queues.
    """
    is_everywhere: bool = False
    """The role is required for all queues."""
    is_in_path: bool = False
    """The path contains the queue, so the role can be checked before the request is read."""
    find_role: Callable[[Any], Awaitable[Role]] | None = None
    """Returns a role that is required instead of the role of the endpoint."""


async def _path_queue(asked: TouchingRequest) -> Iterable[str]:
    return (asked.path["queue"],)


async def _dead_letter_queue(asked: TouchingRequest) -> Iterable[str]:
    return ((await asked.operations.dead_letter_queue(asked.path["queue"])).name,)


async def _session_queue(asked: TouchingRequest) -> Iterable[str]:
    return (asked.operations.session(asked.path["session"]).queue,)


async def _job_queue(asked: TouchingRequest) -> Iterable[str]:
    return ((await asked.operations.job(asked.path["job"])).queue,)


async def _job_targets(asked: TouchingRequest) -> Iterable[str] | None:
    return await targets_of_job(asked, await asked.operations.job(asked.path["job"]))


async def _find_role_for_job(asked: TouchingRequest) -> Role:
    return role_for_job(asked.principal, await asked.operations.job(asked.path["job"]))


def role_for_job(principal: Principal, job: Job) -> Role:
    """Return the role needed to control a job. Operators can control their own jobs, and admins all."""
    return Role.OPERATOR if job.by_id == principal.id else Role.ADMIN


async def _request_queue(asked: RequestBody[JobRequest]) -> Iterable[str]:
    return (asked.body.queue,)


async def _redrive_targets(asked: RequestBody[JobRequest]) -> Iterable[str] | None:
    if not isinstance(asked.body, RedriveRequest):
        return ()
    return await asked.operations.queues_reached(asked.body.queue, asked.body.target)


async def _copy_targets(asked: RequestBody[EditRequest]) -> Iterable[str] | None:
    queue = asked.operations.session(asked.path["session"]).queue
    return await asked.operations.queues_reached(queue, asked.body.target)


async def _queues_in_answer(asked: RequestBody[QueueAnswer]) -> Iterable[str]:
    return queues_of_answer(asked.body)


async def queues_of_search(asked: RequestBody[SearchRequest]) -> tuple[str, ...]:
    """Return the queues that a search names, or the queue of its job."""
    if asked.body.job:
        return ((await asked.operations.job(asked.body.job)).queue,)
    return asked.body.queues


async def targets_of_job(asked: TouchingRequest, job: Job) -> Iterable[str] | None:
    if job.kind is not JobKind.REDRIVE:
        return ()
    return await asked.operations.queues_reached(job.queue, job.target_choice or BY_DESIGN)


def queues_of_answer(answer: QueueAnswer) -> tuple[str, ...]:
    """Return the queues that an answer about a candidate configures."""
    return (answer.queue, answer.main_queue) if answer.main_queue else (answer.queue,)


NO_QUEUE = QueueRule("no queue")
VISIBLE_QUEUES = QueueRule("any queue; the answer contains only queues that the caller may see")
BROKER_MAP = QueueRule("any queue; the answer is the topology of the whole broker")
EVERY_QUEUE = QueueRule("all queues", is_everywhere=True)
PATH_QUEUE = QueueRule("the queue in the path", _path_queue, is_in_path=True)
DEAD_LETTER_QUEUE = QueueRule(
    "the dead-letter queue in the path", _dead_letter_queue, is_in_path=True
)
SESSION_QUEUE = QueueRule("the queue of the browse session", _session_queue)
JOB_QUEUE = QueueRule("the queue of the job", _job_queue)
STEERED_JOB = QueueRule(
    "the queue of the job, the role `admin` for a job of another caller",
    _job_queue,
    find_role=_find_role_for_job,
)
JOB_TARGETS = QueueRule("every queue that the job publishes to", _job_targets)
REQUEST_QUEUE = QueueRule("the dead-letter queue", _request_queue)
REDRIVE_TARGETS = QueueRule("every queue that a re-drive reaches", _redrive_targets)
COPY_TARGETS = QueueRule("every queue that the copy reaches", _copy_targets)
ANSWERED_QUEUES = QueueRule("the queue and its main queue", _queues_in_answer)
SEARCHED_QUEUES = QueueRule(
    "each named queue, or the queues that the caller may search", queues_of_search
)
