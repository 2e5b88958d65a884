"""Alerts in the API and on the page: which fire, who is told, and whether a target can be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, structs

from hopback.admin.api import ApiTable, Call, Empty, Reach
from hopback.admin.auth import forbidden
from hopback.admin.pages import Pages
from hopback.admin.roles import Role
from hopback.deadletters.alerts import AlertList, AlertState, AlertTestResult

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.admin.pages import Visit

__all__ = ["ALERTS", "ALERT_PAGES", "AlertTestRequest", "visible_alerts"]

ALERTS = ApiTable()
"""The rows of this part, each above what answers it."""


class AlertTestRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Which target is to be tried."""

    target: Annotated[str, Meta(min_length=1, max_length=100)]


async def visible_alerts(call: Call[Empty, None]) -> AlertList:
    """The alerts of queues that the caller may see; rules and targets are for admins."""
    found, principal = await call.services.alerting.listed(), call.principal
    items = tuple(
        one
        for one in found.items
        if call.services.has(one.broker) and principal.allows(Role.VIEWER, one.queue)
    )
    if not call.services.manages(principal):
        return AlertList(items, len(items))
    return structs.replace(found, items=items, total=len(items))


@ALERTS.row("GET", "/admin/alerts", Role.VIEWER, answer=AlertList)
async def _list_alerts(call: Call[Empty, None]) -> AlertList:
    """Alerts that fire, are about to, or were resolved within a week."""
    return await visible_alerts(call)


@ALERTS.row(
    "POST",
    "/admin/alerts/test",
    Role.ADMIN,
    Reach.EVERYWHERE,
    body=AlertTestRequest,
    answer=AlertTestResult,
    errors=(404,),
)
async def _test_alert(call: Call[Empty, AlertTestRequest]) -> AlertTestResult:
    """Send a target of the settings a message that says it is a test."""
    if not call.services.manages(call.principal):
        raise forbidden()
    found = await call.services.alerting.test(call.body.target)
    details = {"target": found.target, "problem": found.problem}
    result = "ok" if found.delivered else "failed"
    await call.operations.note("alert.test", result=result, details=details)
    return found


# --- the page of alerts ----------------------------------------------------------------------------

ALERT_PAGES = Pages()
"""The rows of this part."""


@ALERT_PAGES.get("/alerts")
async def _alerts(visit: Visit) -> Response:
    return await _page(visit, None)


@ALERT_PAGES.post("/alerts/test")
async def _test(visit: Visit) -> Response:
    if not visit.services.manages(visit.principal):
        raise forbidden()
    tested = await visit.services.alerting.test(visit.field("target"))
    details = {"target": tested.target, "problem": tested.problem}
    result = "ok" if tested.delivered else "failed"
    await visit.operations.note("alert.test", result=result, details=details)
    return await _page(visit, tested)


async def _page(visit: Visit, tested: AlertTestResult | None) -> Response:
    found = await visit.services.alerting.listed()
    seen = [
        one
        for one in found.items
        if visit.services.has(one.broker) and visit.principal.allows(Role.VIEWER, one.queue)
    ]
    by_state = {state: [one for one in seen if one.state is state] for state in AlertState}
    firing = by_state[AlertState.FIRING]
    word = "alert fires" if len(firing) == 1 else "alerts fire"
    return visit.page(
        "alerts.html",
        headline=f"{len(firing)} {word}" if firing else "No alert fires",
        firing=firing,
        pending=by_state[AlertState.PENDING],
        resolved=by_state[AlertState.RESOLVED],
        manages=visit.services.manages(visit.principal),
        rules=found.rules,
        targets=found.targets,
        tested=tested,
    )
