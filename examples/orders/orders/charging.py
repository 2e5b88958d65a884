"""Charges: paid over HTTP, with patience for a payment service that has none."""

import os
from collections.abc import AsyncIterator
from typing import Annotated

import httpx

from hopback import BreakerPolicy, Context, Depends, Router
from orders.payloads import ChargeEnded, ChargeWanted

router = Router("charges.")


async def open_payments() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=os.environ["PAYMENTS_URL"], timeout=5) as client:
        yield client


Payments = Annotated[httpx.AsyncClient, Depends(open_payments, scope="application")]


@router.handler("wanted", retry=["1m"], bind={"shop": "charge.wanted"}, breaker=BreakerPolicy(20))
async def charge(wanted: ChargeWanted, context: Context, payments: Payments) -> None:
    once = {"Idempotency-Key": context.message_id}
    answer = await payments.post("/charges", json=wanted.model_dump(), headers=once)
    kind = "refused" if answer.status_code == httpx.codes.PAYMENT_REQUIRED else "paid"
    if kind == "paid":
        answer.raise_for_status()  # 429 and 5xx: wait in a retry queue and come again
    ended = ChargeEnded(order=wanted.order, answer=answer.text)
    await context.publish("shop", "mail.wanted", ended, message_type=kind)
