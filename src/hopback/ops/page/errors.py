"""The pages that list errors and show the queues that contain an error.

These pages do not read any queues. The last survey has found which queues contain an error. Actions
select the messages with the filter `group:FINGERPRINT`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.ops.contract.queue_rules import VISIBLE_QUEUES
from hopback.ops.contract.roles import Role
from hopback.ops.http.problems import Refused
from hopback.ops.messages.filters import write_term
from hopback.ops.page.pages import Pages, Visit

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.ops.contract.surveys import ErrorGroup, SurveyedQueue
    from hopback.ops.contract.values import Moment

ERROR_PAGES = Pages()

# rows per page, which are rendered in about 60 ms. Others can be found with the search field.
_ROWS = 200


async def visible_errors(visit: Visit) -> tuple[list[ErrorGroup], tuple[SurveyedQueue, ...]]:
    """Return the errors in queues that the visitor may browse, and the last survey of each queue
    that the visitor may view.

    New errors come first, followed by the most frequent ones.
    """
    several = visit.services.spans_brokers
    found = None if several else await visit.services.recent.errors.get_soon()
    if found is None:
        return [], ()
    principal, errors = visit.principal, found.overview.items
    if not principal.allows_everywhere(Role.OPERATOR):
        errors = found.errors_in(lambda queue: principal.allows(Role.OPERATOR, queue))
    known = principal.visible(found.overview.queues)
    return sorted(errors, key=lambda one: (not one.is_new, -one.count)), known


@ERROR_PAGES.get("/errors", Role.OPERATOR, VISIBLE_QUEUES)
async def _list_errors(visit: Visit) -> Response:
    await visit.services.recent.errors.wait_for_first(visit.first_s)
    errors, known = await visible_errors(visit)
    wanted = visit.field("find").strip().lower()
    found = [
        one
        for one in errors
        if wanted
        in " ".join((one.error, one.message, one.reason, *(at.queue for at in one.queues))).lower()
    ]
    visible = [one for one in known if visit.principal.allows(Role.OPERATOR, one.queue)]
    return visit.page(
        "errors.html",
        left_out=[one for one in visible if one.why_not],
        held=[each for one in visible for each in one.held],
        errors=found[:_ROWS],
        found=len(found),
        total=len(errors),
        messages=sum(one.count for one in errors),
        find=visit.field("find"),
        surveyed_at=_last_survey(known, {at.queue for one in errors for at in one.queues}),
    )


@ERROR_PAGES.get("/errors/{group}", Role.OPERATOR, VISIBLE_QUEUES)
async def _show_error(visit: Visit) -> Response:
    await visit.services.recent.errors.wait_for_first(visit.first_s)
    errors, known = await visible_errors(visit)
    error = next((one for one in errors if one.fingerprint == visit.path["group"]), None)
    if error is None:
        raise Refused(
            404,
            "not-found",
            "The last survey found no messages of this error. They may have been re-driven or discarded.",
        )
    places = sorted(error.queues, key=lambda at: (-at.count, at.queue))
    return visit.page(
        "error.html",
        error=error,
        filter=write_term("group", error.fingerprint),
        places=places[:_ROWS],
        surveyed_at=_last_survey(known, {at.queue for at in places}),
        surveys={one.queue: one for one in known},
    )


def _last_survey(known: tuple[SurveyedQueue, ...], queues: set[str]) -> Moment | None:
    """Return when one of these queues was last surveyed."""
    times = [one.at for one in known if one.at is not None and one.queue in queues]
    return max(times, default=None)
