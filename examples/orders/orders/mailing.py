"""Mails: two types of message on one queue."""

from logging import info

from hopback import Router
from orders.payloads import ChargeEnded

router = Router("mails.")


@router.handler("wanted", message_type="paid", retry=["1m"], bind={"shop": "mail.wanted"})
async def thank(charge: ChargeEnded) -> None:
    info("mail: order %d is paid", charge.order)


@router.handler("wanted", message_type="refused")
async def regret(charge: ChargeEnded) -> None:
    info("mail: order %d was refused: %s", charge.order, charge.answer)
