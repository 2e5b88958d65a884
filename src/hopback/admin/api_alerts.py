"""The API of alerts: which fire, who is told, and whether a target can be reached."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, structs

from hopback.admin.api import ApiTable, Call, Empty, Reach
from hopback.admin.auth import forbidden
from hopback.admin.roles import Role
from hopback.deadletters.alerts import AlertList, AlertTestResult

__all__ = ["ALERTS", "AlertTestRequest", "visible_alerts"]

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
