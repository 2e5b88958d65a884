"""The service at work: on Hopback's embedded broker, with a real database and a payment service in memory."""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator

os.environ.setdefault("DATABASE_URL", f"sqlite:///{tempfile.mkdtemp()}/orders.db")

import httpx
import pytest
from sqlalchemy import delete, func, select

from hopback.testing import AppTest
from orders import app
from orders.charging import open_payments
from orders.database import Order, database
from orders.payloads import OrderPlaced

ORDER = OrderPlaced(id=7, customer="Ada", cents=950)


async def payments() -> AsyncGenerator[httpx.AsyncClient]:
    """A payment service that has no money for customers who order for more than 100."""

    def answer(request: httpx.Request) -> httpx.Response:
        cents = int(request.content.split(b":")[-1].rstrip(b"}"))
        return httpx.Response(402, text="too much") if cents > 10_000 else httpx.Response(201)

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(base_url="http://payments", transport=transport) as client:
        yield client


def waiting(test: AppTest) -> int:
    """How many messages wait to be sent later."""
    queues = test.broker.snapshot().queues
    return sum(len(one.ready) for one in queues if "delay.level" in one.name)


async def play(*orders: OrderPlaced, mails: int, reminders: int = 0) -> list[str]:
    """Let the orders through, ask for one, and return the mails in order of arrival."""
    async with asyncio.timeout(30), AppTest(app, overrides={open_payments: payments}) as test:
        for order in orders:
            await test.publish(
                "order.placed", order, exchange="shop", message_id=f"order-{order.id}"
            )
        while len(found := test.find_events("delivery.done", queue="mails.wanted")) < mails:
            await asyncio.sleep(0.05)  # the outbox is emptied by a relay, in real time
        assert await test.request("orders.asked", orders[0].id, returns=OrderPlaced) == orders[0]
        assert await test.request("orders.asked", 404) is None
        while waiting(test) < reminders:
            await asyncio.sleep(0.05)
        if not reminders:  # nobody waits here for two days
            await test.drain()
        async with database.begin() as connection:
            stored = await connection.scalar(select(func.count()).select_from(Order))
            await connection.execute(delete(Order))
        assert stored == len({order.id for order in orders})
    return [str(one.fields["message_type"]) for one in found]


def test_an_order_is_stored_charged_and_thanked_for() -> None:
    """Through three queues, an outbox and a payment service."""
    assert asyncio.run(play(ORDER, mails=1)) == ["paid"]


def test_an_order_that_comes_twice_is_charged_once() -> None:
    """The inbox knows it again."""
    other = ORDER.model_copy(update={"id": 8})
    assert asyncio.run(play(other, other, mails=1)) == ["paid"]


def test_a_refused_payment_is_told_the_customer_and_a_reminder_waits() -> None:
    """A refusal is no failure: it is not retried."""
    dear = ORDER.model_copy(update={"id": 9, "cents": 99_999})
    assert asyncio.run(play(dear, mails=1, reminders=1)) == ["refused"]


def test_a_bad_order_is_parked_with_a_reason() -> None:
    """Nothing is guessed: the dead letter says where it is wrong."""

    async def bad() -> str:
        async with AppTest(app, overrides={open_payments: payments}) as test:
            await test.publish(
                "order.placed", {"id": 1, "customer": "Bob", "cents": -5}, exchange="shop"
            )
            await test.drain()
            test.assert_parked("orders.placed", times=1)
            return str(test.find_events("delivery.parked")[0].fields["reason"])

    assert "cents: Input should be greater than 0" in asyncio.run(bad())


@pytest.mark.filterwarnings("ignore")  # of Starlette's, about its test client
def test_orders_come_by_fastapi_and_by_django(
    hopback_app, hopback_broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both answer when the broker has confirmed."""
    monkeypatch.setenv("HOPBACK_BROKER", hopback_broker.url)
    monkeypatch.setenv("PAYMENTS_URL", "http://payments")
    hopback_app(app).stop()  # the queues are there, and nobody takes what arrives
    import django
    from django.conf import settings
    from django.test import RequestFactory
    from fastapi.testclient import TestClient

    settings.configure()
    django.setup()
    from orders import django_view, web

    with TestClient(web.web) as client:
        assert client.post("/orders", json=ORDER.model_dump()).status_code == 202
        assert client.post("/orders", json={}).status_code == 422
    request = RequestFactory().post("/orders", ORDER.model_dump(), content_type="application/json")
    assert django_view.place(request).status_code == 202
    django_view.publisher.close()
    assert len(hopback_broker.snapshot().queue("orders.placed").ready) == 2
