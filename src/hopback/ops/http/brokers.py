"""The part of the API that covers all brokers of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, field
from starlette.responses import Response

from hopback.ops.contract.queue_rules import VISIBLE_QUEUES
from hopback.ops.contract.roles import Principal, Role
from hopback.ops.contract.values import Moment, QueueSummary
from hopback.ops.http.api import ApiTable, Call
from hopback.ops.http.probes import metrics_of
from hopback.ops.http.services import Services, add_prefix
from hopback.ops.http.sweep import Swept, read_all

if TYPE_CHECKING:
    from hopback.ops.contract.endpoints import Empty

BROKERS = ApiTable()


class FindQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`find` is a part of the queue name or of the broker name."""

    find: Annotated[str, Meta(max_length=255)] = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class BrokerAnswer(Struct, frozen=True, rename="camel"):
    """A broker that the caller can see. `path` is the prefix of its paths.

    `ready` is false if the broker does not respond. In this case, `reason` contains the error, and
    the numbers are from the last successful reading.
    """

    name: str
    path: str
    address: str
    role: Role
    ready: bool
    reason: str
    read_at: Moment | None
    queues: int
    messages: int


class BrokerList(Struct, frozen=True, rename="camel"):
    """All brokers, in the order of the settings. Paths without a broker name refer to the first one."""

    items: list[BrokerAnswer]
    total: int


class BrokerQueue(Struct, frozen=True, rename="camel"):
    """A dead-letter queue and the name of its broker."""

    broker: str
    summary: QueueSummary = field(name="queue")


class AllQueues(Struct, frozen=True, rename="camel"):
    """The dead-letter queues of all brokers, those with the most messages first.

    `total` is the number of all matching queues.
    """

    items: list[BrokerQueue]
    total: int
    brokers: list[BrokerAnswer]


async def _visible_brokers(call: Call[Any, None]) -> list[tuple[Services, Principal, Swept | None]]:
    """Return the brokers that the caller can see, with the caller's grants and the last reading."""
    allowed = call.services.shared.visible_to(call.principal)
    found = await read_all([each.recent.sweep for each, _ in allowed])
    return [(*pair, swept) for pair, swept in zip(allowed, found, strict=True)]


def _answer(services: Services, principal: Principal, swept: Swept | None) -> BrokerAnswer:
    queues = [] if swept is None else swept.queues
    depths = [one.depth.total or 0 for one in principal.visible(queues)]
    reason = "it has not answered yet"
    if swept is not None:
        reason = "" if swept.error is None else str(swept.error)
    return BrokerAnswer(
        services.name,
        services.prefix,
        services.broker.address,
        principal.role or Role.VIEWER,
        not reason,
        reason,
        None if swept is None else Moment(swept.at),
        len(depths),
        sum(depths),
    )


@BROKERS.row("GET", "/admin/brokers", None, VISIBLE_QUEUES, answer=BrokerList)
async def _list_brokers(call: Call[Empty, None]) -> BrokerList:
    """List the brokers that the caller can see, and whether they respond."""
    items = [_answer(*each) for each in await _visible_brokers(call)]
    return BrokerList(items, len(items))


@BROKERS.row(
    "GET", "/admin/brokers/queues", None, VISIBLE_QUEUES, query=FindQuery, answer=AllQueues
)
async def _list_all_queues(call: Call[FindQuery, None]) -> AllQueues:
    """List the dead-letter queues of all brokers. The data can be some seconds old."""
    seen, wanted = await _visible_brokers(call), call.query.find.lower()
    found = [
        BrokerQueue(services.name, one)
        for services, principal, swept in seen
        for one in principal.visible(() if swept is None else swept.queues)
        if wanted in f"{services.name} {one.queue}".lower()
    ]
    found.sort(key=lambda each: (-(each.summary.depth.total or 0), each.summary.queue))
    prefixes = {services.name: services.prefix for services, _, _ in seen}
    items = [
        BrokerQueue(each.broker, add_prefix(each.summary, prefixes[each.broker]))
        for each in found[: call.query.limit]
    ]
    return AllQueues(items, len(found), [_answer(*each) for each in seen])


@BROKERS.row("GET", "/admin/brokers/metrics", None, VISIBLE_QUEUES, media=("text/plain",))
async def _all_metrics(call: Call[Empty, None]) -> Response:
    """Return the metrics of all brokers whose queues the caller may all view, with a `broker` label."""
    allowed = [
        services
        for services, principal, _ in await _visible_brokers(call)
        if principal.allows_everywhere(Role.VIEWER)
    ]
    return Response(
        metrics_of(allowed, labelled=True), media_type="text/plain; version=0.0.4; charset=utf-8"
    )
