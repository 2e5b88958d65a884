"""Charge customers over HTTP."""

import os
from collections.abc import AsyncGenerator
from typing import Annotated

import httpx

from hopback import BreakerPolicy, Context, Depends, Park, Router, exponential
from orders.model import Order

router = Router("charges.")


async def open_payments() -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=os.environ["PAYMENTS_URL"], timeout=5) as client:
        yield client


Payments = Annotated[httpx.AsyncClient, Depends(open_payments, scope="application")]


@router.handler(
    "wanted", retry=exponential("10s", attempts=6), rate="50/s", breaker=BreakerPolicy(20)
)
async def charge(order: Order, context: Context, payments: Payments) -> None:
    once = {"Idempotency-Key": context.message_id}
    answer = await payments.post("/charges", json=order.model_dump(), headers=once)
    if answer.status_code == httpx.codes.PAYMENT_REQUIRED:
        await context.publish("mails.wanted", order, message_type="refused")
        await context.publish("mails.wanted", order, message_type="refused", delay="2h")
        return
    if answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
        raise Park(answer.text)  # a retry would fail as well
    answer.raise_for_status()  # 429 and 5xx are retried
    await context.publish("mails.wanted", order, message_type="paid")
