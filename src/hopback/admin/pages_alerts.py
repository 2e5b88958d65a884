"""The page of alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.admin.auth import forbidden
from hopback.admin.pages import Pages
from hopback.admin.roles import Role
from hopback.deadletters.alerts import AlertState

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.admin.pages import Visit
    from hopback.deadletters.alerts import AlertTestResult

__all__ = ["ALERT_PAGES"]

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
