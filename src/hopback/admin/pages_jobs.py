"""The pages of jobs: what runs, what ran, how far, and who wanted it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from hopback.admin.gate import forbidden
from hopback.admin.live import changes_of_job
from hopback.admin.pages import see_other
from hopback.admin.rendering import span_words
from hopback.admin.roles import Role
from hopback.admin.services import who

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response

    from hopback.admin.pages import Pages, Visit
    from hopback.deadletters.jobs import Job

__all__ = ["add_job_pages"]


def add_job_pages(pages: Pages) -> None:
    """The pages of jobs."""
    pages.add("GET", "/jobs", _jobs)
    pages.add("GET", "/jobs/{job}", _job)
    pages.add("GET", "/jobs/{job}/live", _live)
    for verb, act in _ACTS.items():
        pages.add("POST", f"/jobs/{{job}}/{verb}", _steering(act))


async def _jobs(visit: Visit) -> Response:
    found = await visit.services.operations.jobs(limit=100)
    seen = [job for job in found if visit.principal.allows(Role.VIEWER, job.queue)]
    running = sum(job.is_active for job in seen)
    words = (
        f"{running} job{'s' if running != 1 else ''} running" if running else "No job is running"
    )
    return visit.page("jobs.html", jobs=seen, headline=words)


async def _seen(visit: Visit) -> Job:
    job = await visit.services.operations.job(visit.path["job"])
    visit.need(Role.VIEWER, job.queue)
    return job


def _steers(visit: Visit, job: Job) -> bool:
    """Operators steer their own jobs, admins all."""
    mine = job.spec.by.id == visit.principal.id
    return visit.principal.allows(Role.OPERATOR if mine else Role.ADMIN, job.queue)


async def _job(visit: Visit) -> Response:
    job = await _seen(visit)
    failures = await visit.services.operations.failures(job.id, limit=50)
    return visit.page(
        "job.html", job=job, failures=failures, steers=_steers(visit, job), speed=_speed(job)
    )


def _speed(job: Job) -> str:
    """How fast it was so far, and how long the rest would take."""
    spent = job.updated - job.created
    if job.counts.done < 2 or spent <= 0.5:
        return ""
    rate = job.counts.done / spent
    left = f", {span_words(job.counts.remaining / rate)} left" if job.is_active else ""
    return f"{rate:,.1f} a second on average{left}"


async def _live(visit: Visit) -> Response:
    job = await _seen(visit)
    changes = changes_of_job(visit.services.operations.events(job.id))
    return visit.services.streams.open(changes, visit.principal)


def _steering(
    act: Callable[[Visit, Job], Awaitable[Job]],
) -> Callable[[Visit], Awaitable[Response]]:
    async def answer(visit: Visit) -> Response:
        job = await _seen(visit)
        if not _steers(visit, job):
            raise forbidden("An operator steers own jobs only; an admin steers all.")
        after = await act(visit, job)
        told = "?told=looked" if visit.request.url.path.endswith("came-back") else ""
        return see_other(f"/jobs/{quote(after.id, safe='')}{told}")

    return answer


async def _pause(visit: Visit, job: Job) -> Job:
    return await visit.services.operations.pause(job.id, by=who(visit.principal))


async def _resume(visit: Visit, job: Job) -> Job:
    return await visit.services.operations.resume(job.id, by=who(visit.principal))


async def _cancel(visit: Visit, job: Job) -> Job:
    return await visit.services.operations.cancel(job.id, by=who(visit.principal))


async def _rate(visit: Visit, job: Job) -> Job:
    rate = visit.rate()
    return await visit.services.operations.set_rate(job.id, rate, by=who(visit.principal))


async def _retry(visit: Visit, job: Job) -> Job:
    return await visit.services.operations.retry_failures(
        job.id, by=who(visit.principal), reason=visit.field("reason")
    )


async def _came_back(visit: Visit, job: Job) -> Job:
    await visit.services.operations.came_back(job.id, by=who(visit.principal))
    return await visit.services.operations.job(job.id)


_ACTS: dict[str, Callable[[Visit, Job], Awaitable[Job]]] = {
    "pause": _pause,
    "resume": _resume,
    "cancel": _cancel,
    "rate": _rate,
    "retry-failures": _retry,
    "came-back": _came_back,
}
