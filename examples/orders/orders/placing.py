"""Store each order once. The message that requests the charge is sent in the same transaction."""

from sqlalchemy import insert, select

from hopback import Context, Router, compose
from orders.model import Order, database, orders

router = Router("orders.")


@router.handler("placed", retry=["5s", "1m", "10m"], bind={"shop": "order.placed"})
async def place(order: Order, context: Context) -> None:
    async with database.transaction() as tx:
        if await tx.first_time("orders.placed", context.delivery):
            await tx.execute(insert(orders).values(order.model_dump()))
            await tx.send(compose("charges.wanted", order), key=order.customer)


@router.handler("asked", retry=None, replies=True)
async def find(order_id: int) -> Order | None:
    async with database.transaction() as tx:
        found = await tx.execute(select(orders).where(orders.c.id == order_id))
        row = found.one_or_none()
    return row and Order.model_validate(row, from_attributes=True)
