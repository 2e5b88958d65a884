"""Send mails. The queue has two message types with a handler for each."""

from logging import info

from hopback import Router
from orders.model import Order

router = Router("mails.")


@router.handler("wanted", message_type="paid", retry=["1m"])
async def thank(order: Order) -> None:
    info("mail: order %d is paid", order.id)


@router.handler("wanted", message_type="refused")
async def remind(order: Order) -> None:
    info("mail: order %d is not paid yet", order.id)
