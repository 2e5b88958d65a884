"""Orders: stored once, with the message for the charge in the same transaction."""

from hopback import Context, Router, compose
from hopback.store import Transaction
from orders.database import Order, Session
from orders.payloads import OrderPlaced

router = Router("orders.")


@router.handler("placed", retry=["5s", "1m", "10m"], bind={"shop": "order.placed"})
async def place(order: OrderPlaced, context: Context, session: Session) -> None:
    tx = Transaction(await session.connection())
    if not await tx.first_time("orders.placed", context.delivery):
        return
    session.add(Order(id=order.id, customer=order.customer, cents=order.cents))
    await tx.send(compose("charges.wanted", order), key=order.customer)


@router.handler("asked", retry=None, replies=True)
async def find(order: int, session: Session) -> OrderPlaced | None:
    found = await session.get(Order, order)
    return found and OrderPlaced.model_validate(found, from_attributes=True)
