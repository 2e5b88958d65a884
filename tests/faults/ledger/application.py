"""The test application. Each queue has a handler that does what its orders specify and records each
step.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hopback import App, Context, Done, Outcome, Park, Retry, Snooze
from hopback.headers.names import REDRIVES
from tests.faults.ledger.entry import Kind
from tests.faults.ledger.order import Fate, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hopback.message import Delivery
    from hopback.topology import Topology
    from tests.faults.ledger.entry import Pen

__all__ = ["EXCHANGE", "Told", "key_of", "ledger_app", "two_queues"]

EXCHANGE = "ledger"


def two_queues(retry: tuple[str, ...] = ("1s", "2s")) -> Topology:
    """Return a topology with two services and an audit that receives all messages. A retry of one
    service must not reach the other service or the audit.
    """
    app = App("ledger")
    app.queue("left", retry=retry, bind={EXCHANGE: "left.#"})
    app.queue("right", retry=retry, bind={EXCHANGE: "right.#"})
    app.queue("audit", retry=retry, bind={EXCHANGE: "#"})
    return app.topology


def key_of(delivery: Delivery) -> str | None:
    """Return the key of an order, or None if it has none."""
    if not Order.is_one(delivery.body):
        return None
    key = Order.read(delivery.body).key
    return None if key == "-" else key


def ledger_app(
    topology: Topology,
    pen: Pen,
    *,
    concurrency: int = 10,
    prefetch: int | None = None,
    batch: tuple[str, ...] = (),
    at_run: Callable[[Kind, Order, str], None] = lambda _kind, _order, _queue: None,
) -> App:
    """Create the application for a topology.

    The queues in `batch` are handled in batches. `at_run` is called before and after a run is
    recorded. It may kill the process.
    """
    app = App("ledger", topology=topology)
    for plan in topology.plans:
        if plan.queue in batch:
            _add_batch(app, plan.queue, pen, at_run)
        else:
            _add(app, plan.queue, pen, concurrency, prefetch, at_run)
    return app


def _add(
    app: App,
    queue: str,
    pen: Pen,
    concurrency: int,
    prefetch: int | None,
    at_run: Callable[[Kind, Order, str], None],
) -> None:
    @app.handler(queue, concurrency=concurrency, prefetch=prefetch, key=key_of)
    async def handle(context: Context) -> Outcome | None:
        if not Order.is_one(context.delivery.body):
            return None
        order, attempt = _begin(context, pen)
        at_run(Kind.BEGUN, order, queue)
        if order.pause:
            await asyncio.sleep(order.pause / 1000)
        kind, outcome = _verdict(order, attempt, context)
        pen.write(kind, order.id, queue, attempt)
        at_run(kind, order, queue)
        return outcome


def _begin(context: Context, pen: Pen) -> tuple[Order, int]:
    delivery = context.delivery
    order, attempt = Order.read(delivery.body), context.attempt
    again = "again" if delivery.redelivered else "-"
    redrives = _redrives(context)
    note = f"{again};{redrives}" if redrives else again
    pen.write(Kind.BEGUN, order.id, context.queue, attempt, note)
    if not order.is_unaltered(delivery):
        pen.write(Kind.ALTERED, order.id, context.queue, attempt)
    return order, attempt


def _redrives(context: Context) -> int:
    found = context.headers.get(REDRIVES, 0)
    return found if isinstance(found, int) else 0


def _verdict(order: Order, attempt: int, context: Context) -> tuple[Kind, Outcome | None]:
    """Return the outcome that the order specifies.

    Orders only fail in their first queue. After a re-drive they succeed.
    """
    again = _redrives(context) > 0
    if context.queue != order.to[0] or order.fate is Fate.DONE:
        return Kind.DONE, None
    match order.fate:
        case Fate.HOPELESS if not again:
            return Kind.HOPELESS, Park("hopeless, as ordered")
        case Fate.DOOMED if not again:
            return Kind.FAILED, Retry("doomed, as ordered")
        case Fate.SNOOZE if "hopback-snoozes" not in context.headers:
            return Kind.SNOOZED, Snooze(1)
        case fate if attempt <= fate.failures:
            return Kind.FAILED, Retry("a failure, as ordered")
    return Kind.DONE, None


def _add_batch(app: App, queue: str, pen: Pen, at_run: Callable[[Kind, Order, str], None]) -> None:
    """Add a batch handler. Rows are prepared one by one and written together, and each has its own
    outcome.
    """

    async def prepare(context: Context) -> tuple[Order, Kind, Outcome | None, int] | Done:
        if not Order.is_one(context.delivery.body):
            return Done()
        order, attempt = _begin(context, pen)
        at_run(Kind.BEGUN, order, queue)
        return order, *_verdict(order, attempt, context), attempt

    @app.batch(queue, size=20, wait="50ms", prepare=prepare)
    async def insert(rows: list[Any]) -> list[Any]:
        await asyncio.sleep(max(row[0].pause for row in rows) / 1000)
        outcomes: list[Outcome | None] = []
        for order, kind, outcome, attempt in rows:
            pen.write(kind, order.id, queue, attempt)
            at_run(kind, order, queue)
            outcomes.append(outcome)
        return outcomes


_KINDS = {
    "delivery.retried": Kind.RETRIED,
    "delivery.snoozed": Kind.RETRIED,
    "delivery.parked": Kind.PARKED,
    "delivery.abandoned": Kind.ABANDONED,
}


class Told:
    """A subscriber that records how failed deliveries were settled."""

    def __init__(self, pen: Pen) -> None:
        self._pen = pen

    def wants(self, name: str) -> bool:
        """Return False for successful deliveries, so that the fast path is tested."""
        return name in _KINDS

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        """Record an event of the runtime."""
        self._pen.write(_KINDS[name], fields["message_id"], fields["queue"], fields["attempt"])
