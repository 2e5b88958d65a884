"""The events, and their effects on orders and payments. New orders fail while the warehouse is
closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import Boolean, Column, Integer, MetaData, Table, Text, select, update

from hopback.store import Transaction


@dataclass(frozen=True, slots=True)
class OrderPlaced:
    """A customer placed an order."""

    type: Literal["order.placed"]
    order: str
    sku: str
    quantity: int


@dataclass(frozen=True, slots=True)
class PaymentReceived:
    """A customer paid for an order."""

    type: Literal["payment.received"]
    order: str
    cents: int


@dataclass(frozen=True, slots=True)
class OrderShipped:
    """The warehouse shipped an order."""

    type: Literal["order.shipped"]
    order: str


Event: TypeAlias = OrderPlaced | PaymentReceived | OrderShipped
"""The events in the queue. `type` determines the class and is also the routing key."""

TYPES = ("order.placed", "payment.received", "order.shipped")

METADATA = MetaData()

_PRICES = {"acorn": 5, "walnut": 20, "hazelnut": 8}
"""The price of one piece in cents."""
_STATES = ("placed", "paid", "shipped")
"""The states of an order in chronological order."""

orders: Table = Table(
    "ratatoskr_orders",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("sku", Text, nullable=False),
    Column("quantity", Integer, nullable=False),
    Column("state", Text, nullable=False),
)
_warehouse = Table(
    "ratatoskr_warehouse",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("closed", Boolean, nullable=False),
)


class OrderRefused(ValueError):
    """A permanent error. A retry would fail as well, so the event is parked."""


class NotYet(Exception):
    """A transient error. A retry may succeed."""


async def apply_event(tx: Transaction, event: Event) -> None:
    """Apply an event. Raises OrderRefused or NotYet if this is not possible."""
    match event:
        case OrderPlaced():
            await _place(tx, event)
        case PaymentReceived():
            order = await _advance(tx, event.order, "placed", "paid")
            price = _PRICES[order["sku"]] * order["quantity"]
            if event.cents != price:
                raise OrderRefused(f"cents: expected {price}, got {event.cents}")
        case OrderShipped():
            await _advance(tx, event.order, "paid", "shipped")


async def _place(tx: Transaction, event: OrderPlaced) -> None:
    if event.sku not in _PRICES:
        raise OrderRefused(f"sku: expected one of {', '.join(_PRICES)}")
    if not 1 <= event.quantity <= 1000:
        raise OrderRefused("quantity: expected 1 to 1000")
    if (await tx.execute(select(_warehouse.c.closed))).scalar():
        raise NotYet("the warehouse is closed")
    row = {"id": event.order, "sku": event.sku, "quantity": event.quantity, "state": "placed"}
    placed = tx.insert(orders).values(row).on_conflict_do_nothing().returning(orders.c.id)
    if (await tx.execute(placed)).first() is None:
        raise OrderRefused(f"order {event.order} is already placed, by another event")


async def _advance(tx: Transaction, order_id: str, before: str, after: str) -> dict[str, Any]:
    """Change the state of an order. Raises NotYet if the event has arrived too early."""
    mine = orders.c.id == order_id
    row = (await tx.execute(select(orders).where(mine).with_for_update())).mappings().first()
    if row is None:
        raise NotYet(f"order {order_id} is not {before} yet")
    if _STATES.index(row["state"]) > _STATES.index(before):
        raise OrderRefused(f"order {order_id} is already {row['state']}")
    if row["state"] != before:
        raise NotYet(f"order {order_id} is {row['state']}, not {before} yet")
    await tx.execute(update(orders).where(mine).values(state=after))
    return dict(row)


async def open_warehouse(tx: Transaction, *, is_open: bool) -> None:
    """Open or close the warehouse. This takes effect in all processes."""
    closed = {"closed": not is_open}
    row = tx.insert(_warehouse).values(id=1, **closed)
    await tx.execute(row.on_conflict_do_update(index_elements=["id"], set_=closed))
