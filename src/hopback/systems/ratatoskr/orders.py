"""What the events do: orders, their payment, and the stock of a warehouse that may be closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sqlalchemy import Boolean, Column, Integer, MetaData, Table, Text, insert, select, update

if TYPE_CHECKING:
    from hopback.store import Transaction
    from hopback.systems.database import Database


@dataclass(frozen=True, slots=True)
class OrderPlaced:
    """Somebody wants something."""

    type: Literal["order.placed"]
    order: str
    sku: str
    quantity: int


@dataclass(frozen=True, slots=True)
class PaymentReceived:
    """Somebody paid."""

    type: Literal["payment.received"]
    order: str
    cents: int


@dataclass(frozen=True, slots=True)
class OrderShipped:
    """A parcel left the house."""

    type: Literal["order.shipped"]
    order: str


Event: TypeAlias = OrderPlaced | PaymentReceived | OrderShipped
"""Whatever the queue may hold; `type` tells which, and is the routing key too."""

TYPES = ("order.placed", "payment.received", "order.shipped")
"""The types there are."""


METADATA = MetaData()
_PRICES = {"acorn": 5, "walnut": 20, "hazelnut": 8}
"""What the warehouse has, and what a piece costs in cents."""

_STATES = ("placed", "paid", "shipped")
"""The states of an order, in the order in which it has them."""

_orders = Table(
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
    """A permanent error: trying again cannot help."""


class NotYet(Exception):
    """A transient error: what is missing may be there in a while."""


async def apply_event(tx: Transaction, event: Event) -> None:
    """Carry an event out; Refused or NotYet if that cannot be done."""
    match event:
        case OrderPlaced():
            if event.sku not in _PRICES:
                raise OrderRefused(f"sku: expected one of {', '.join(_PRICES)}")
            if not 1 <= event.quantity <= 1000:
                raise OrderRefused("quantity: expected 1 to 1000")
            if bool((await tx.execute(select(_warehouse.c.closed))).scalar()):
                raise NotYet("the warehouse is closed")
            known = (
                await tx.execute(select(_orders.c.id).where(_orders.c.id == event.order))
            ).first()
            if known is not None:
                raise OrderRefused(f"order {event.order} is placed already, by another event")
            row = {
                "id": event.order,
                "sku": event.sku,
                "quantity": event.quantity,
                "state": "placed",
            }
            await tx.execute(insert(_orders).values(row))
        case PaymentReceived():
            order = await _advance(tx, event.order, "placed", "paid")
            price = _PRICES[order["sku"]] * order["quantity"]
            if event.cents != price:
                raise OrderRefused(f"cents: expected {price}, got {event.cents}")
        case OrderShipped():
            await _advance(tx, event.order, "paid", "shipped")


async def _advance(tx: Transaction, order_id: str, before: str, after: str) -> dict[str, Any]:
    """From one state to the next; events may overtake each other, so what comes first waits."""
    mine = _orders.c.id == order_id
    row = (await tx.execute(select(_orders).where(mine).with_for_update())).mappings().first()
    if row is None:
        raise NotYet(f"order {order_id} is not {before} yet")
    if _STATES.index(row["state"]) > _STATES.index(before):
        raise OrderRefused(f"order {order_id} is {row['state']} already")
    if row["state"] != before:
        raise NotYet(f"order {order_id} is {row['state']}, not {before} yet")
    await tx.execute(update(_orders).where(mine).values(state=after))
    return dict(row)


async def open_warehouse(database: Database, *, is_open: bool) -> None:
    """Open or close the warehouse, for every process."""
    async with database.transaction() as tx:
        changed = await tx.execute(update(_warehouse).values(closed=not is_open))
        if not changed.rowcount:
            await tx.execute(insert(_warehouse).values(id=1, closed=not is_open))


async def find_order(database: Database, order_id: str) -> dict[str, Any] | None:
    """An order and its state, or None."""
    row = await database.row(select(_orders).where(_orders.c.id == order_id))
    return None if row is None else dict(row)
