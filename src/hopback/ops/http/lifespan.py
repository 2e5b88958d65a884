"""The background tasks of the service."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from hopback.errors import HopbackError
from hopback.ops.http.sweep import BETWEEN_SWEEPS_S, FIRST_AT_ONCE
from hopback.ops.jobs.retention import forget_old
from hopback.ops.messages.archive import delete_exports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jinja2 import Environment
    from starlette.applications import Starlette

    from hopback.ops.http.services import Services

_LOG = logging.getLogger("hopback.ops.http")

_COUNTS_EVERY_S = 10.0  # seconds between writes of refusal counts

_TAKE_OVER_EVERY_S = 5.0  # seconds between checks for jobs whose process has died

_FIRST_S = 1.0  # seconds to wait for the first reading of a broker before the next broker is read

_DAY_S = 86_400.0  # seconds
_RETENTION_EVERY_S = 3600.0  # seconds between deletions of old jobs, audit entries and exports


def lifespan_of(services: Services, templates: Environment) -> Any:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        """Run the background tasks of all brokers while the service is running."""
        between_s = BETWEEN_SWEEPS_S / len(services.shared.brokers)
        minutes = services.shared.settings.deadletters.survey_minutes
        survey_s = minutes * 60.0 if minutes else None
        first = asyncio.Semaphore(FIRST_AT_ONCE)
        tasks = [
            asyncio.create_task(
                _watch(each, first, between_s * number, survey_s), name=f"watch {each.name}"
            )
            for number, each in enumerate(services.shared.brokers)
        ]
        tasks += [
            asyncio.create_task(_write_counts(services), name="counts of refusals"),
            asyncio.create_task(_keep_retention(services), name="retention"),
            asyncio.create_task(asyncio.to_thread(compile_pages, templates), name="templates"),
        ]
        if services.shared.settings.jobs.take_over:
            tasks.append(asyncio.create_task(_take_over(services), name="take over jobs"))
        if services.shared.alerting.has_rules:
            tasks.append(asyncio.create_task(services.shared.alerting.run(), name="alerts"))
        try:
            yield
        finally:
            for each in services.shared.brokers:
                for waiting in tuple(each.working.values()):
                    await waiting.end()
            surveys = [task for each in services.shared.brokers for task in each.recent.surveying]
            for task in (*tasks, *surveys):
                task.cancel()
            await asyncio.gather(*tasks, *surveys, return_exceptions=True)
            for each in services.shared.brokers:
                await each.denials.flush(everything=True)

    return lifespan


async def _watch(
    services: Services, first: asyncio.Semaphore, delay: float, survey_s: float | None
) -> None:
    """Compute the first answers for a broker. Then sweep and survey it until the task is cancelled.

    Only `FIRST_AT_ONCE` brokers are read for the first time simultaneously, so that pages can be
    served meanwhile. A broker that does not respond delays the others only for a short time.
    """
    async with first:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_S):
                await services.recent.compute()
    await asyncio.gather(
        services.recent.sweep.run(delay), services.operations.surveys.keep(survey_s)
    )


def compile_pages(templates: Environment) -> None:
    """Compile all templates in advance, which takes 0.4 s of CPU time."""
    for name in templates.list_templates(extensions=["html"]):
        templates.get_template(name)


async def _write_counts(services: Services) -> None:
    while True:
        await asyncio.sleep(_COUNTS_EVERY_S)
        for each in services.shared.brokers:
            await each.denials.flush()


async def _take_over(services: Services) -> None:
    """Continue jobs whose processes have died, on all brokers that respond."""
    while True:
        await asyncio.sleep(_TAKE_OVER_EVERY_S)
        for each in services.shared.brokers:
            try:
                for job in await each.operations.take_over():
                    _LOG.warning(
                        "job %s of %s continues here because its process has died",
                        job.id,
                        job.queue,
                    )
            except HopbackError as error:  # retried in the next iteration
                _LOG.info("cannot take over jobs of %s: %s", each.broker.address, error)


async def _keep_retention(services: Services) -> None:
    """Delete old jobs, audit entries and exports now and every hour."""
    days = services.shared.settings.retention
    operations = services.operations
    while True:
        try:
            await forget_old(
                operations.journal,
                services.clock,
                audit_days=days.audit_days,
                job_days=days.job_days,
            )
            if days.export_days and operations.settings.exports is not None:
                before = services.clock.now() - days.export_days * _DAY_S
                gone = await asyncio.to_thread(delete_exports, operations.settings.exports, before)
                if gone:
                    await operations.note("exports.retention", details={"files": gone})
        except Exception as error:  # retried in the next iteration
            _LOG.warning("old jobs and audit could not be deleted", exc_info=error)
        await asyncio.sleep(_RETENTION_EVERY_S)
