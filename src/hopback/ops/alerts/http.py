"""The API and pages for alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from hopback.ops.alerts.values import AlertList, AlertState, AlertTestResult
from hopback.ops.contract import endpoints
from hopback.ops.contract.queue_rules import EVERY_QUEUE, VISIBLE_QUEUES
from hopback.ops.contract.roles import Role
from hopback.ops.http.api import ApiTable, Call
from hopback.ops.http.auth import forbidden
from hopback.ops.page.pages import Pages, Visit
from hopback.text import count_of

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.ops.contract.endpoints import Empty
    from hopback.ops.contract.requests import AlertTestRequest
    from hopback.ops.http.services import CallerRequest

ALERTS = ApiTable()
"""The API endpoints for alerts."""


@ALERTS.answer(endpoints.ALERTS)
async def _list_alerts(call: CallerRequest) -> AlertList:
    """List firing and pending alerts, and those resolved within the last week."""
    found = await call.services.shared.alerting.list_alerts()
    here = (one for one in found.items if call.services.has(one.broker))
    items = call.principal.visible(here)
    if not call.services.manages(call.principal):
        return AlertList(items, len(items))
    # only admins see rules and targets
    return structs.replace(found, items=items, total=len(items))


@ALERTS.answer(endpoints.TEST_ALERT)
async def _test_alert(call: Call[Empty, AlertTestRequest]) -> AlertTestResult:
    """Send a test message to an alert target and report whether it was accepted."""
    return await _send_test(call, call.body.target)


async def _send_test(asked: CallerRequest, target: str) -> AlertTestResult:
    if not asked.services.manages(asked.principal):
        raise forbidden()
    found = await asked.services.shared.alerting.test(target)
    details = {"target": found.target, "problem": found.problem}
    result = "ok" if found.delivered else "failed"
    await asked.operations.note("alert.test", result=result, details=details)
    return found


ALERT_PAGES = Pages()
"""The pages for alerts."""


@ALERT_PAGES.post("/alerts/test", Role.ADMIN, EVERY_QUEUE)
async def _test(visit: Visit) -> Response:
    return await _alerts(visit, await _send_test(visit, visit.field("target")))


@ALERT_PAGES.get("/alerts", Role.VIEWER, VISIBLE_QUEUES)
async def _alerts(visit: Visit, tested: AlertTestResult | None = None) -> Response:
    found = await _list_alerts(visit)
    by_state = {state: [one for one in found.items if one.state is state] for state in AlertState}
    firing = by_state[AlertState.FIRING]
    return visit.page(
        "alerts.html",
        headline=count_of(len(firing), "active alert") if firing else "Alerts",
        firing=firing,
        pending=by_state[AlertState.PENDING],
        resolved=by_state[AlertState.RESOLVED],
        manages=visit.services.manages(visit.principal),
        rules=found.rules,
        targets=found.targets,
        # A notice is still waiting if it is newer than the last one that was accepted.
        taken={one.name: one.sent_at or 0.0 for one in found.targets},
        tested=tested,
    )
