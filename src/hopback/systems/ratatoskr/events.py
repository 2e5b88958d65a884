"""The events, typed: the runtime decodes a message into one of them, or parks it at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["TYPES", "Event", "OrderPlaced", "OrderShipped", "PaymentReceived"]


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
