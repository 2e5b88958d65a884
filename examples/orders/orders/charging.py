"""Charges: paid over HTTP, with patience for a payment service that has none."""

import os
from collections.abc import AsyncGenerator
from typing import Annotated

import httpx

from hopback import BreakerPolicy, Context, Depends, Router
from orders.payloads import OrderPlaced

router = Router("charges.")


async def open_payments() -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=os.environ["PAYMENTS_URL"], timeout=5) as client:
        yield client


Payments = Annotated[httpx.AsyncClient, Depends(open_payments, scope="application")]


@router.handler("wanted", retry=["1m"], bind={"shop": "charge.wanted"}, breaker=BreakerPolicy(20))
async def charge(order: OrderPlaced, context: Context, payments: Payments) -> None:
    once = {"Idempotency-Key": context.message_id}
    answer = await payments.post("/charges", json=order.model_dump(), headers=once)
    kind = "refused" if answer.status_code == httpx.codes.PAYMENT_REQUIRED else "paid"
    if kind == "paid":
        answer.raise_for_status()  # 429 and 5xx: wait in a retry queue and come again
    await context.publish("mail.wanted", order, exchange="shop", message_type=kind)
    if kind == "refused":  # and a reminder, if nothing happens
        await context.publish("mail.wanted", order, exchange="shop", message_type=kind, delay="2d")
