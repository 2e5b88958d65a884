"""Tests of the service on the embedded broker in virtual time. The database is real, and payments
are simulated in memory.
"""

import json
import os
import tempfile
from collections.abc import AsyncGenerator

os.environ.setdefault("DATABASE_URL", f"sqlite:///{tempfile.mkdtemp()}/orders.db")

import httpx
import pytest

from hopback.testing import AppTest, in_virtual_time
from orders import app
from orders.charging import open_payments
from orders.model import Order


def answer(request: httpx.Request) -> httpx.Response:
    order = json.loads(request.content)
    if order["customer"] == "Eve":
        return httpx.Response(503)
    return httpx.Response(402 if order["cents"] > 10_000 else 201)


async def payments() -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(base_url="http://payments", transport=transport) as client:
        yield client


def start() -> AppTest:
    return AppTest(app, overrides={open_payments: payments})


@in_virtual_time
async def test_order_is_stored_charged_and_answered_by_mail() -> None:
    order = Order(id=7, customer="Ada", cents=950)
    async with start() as test:
        await test.publish("order.placed", order, exchange="shop")
        await test.drain()
        test.assert_done("mails.wanted", times=1, message_type="paid")
        assert await test.request("orders.asked", 7, returns=Order) == order
        assert await test.request("orders.asked", 404) is None


@in_virtual_time
async def test_order_that_arrives_twice_is_charged_once() -> None:
    async with start() as test:
        for _ in range(2):
            order = Order(id=8, customer="Ada", cents=950)
            await test.publish("order.placed", order, exchange="shop", message_id="order-8")
        await test.drain()
        test.assert_done("charges.wanted", times=1)


@in_virtual_time
async def test_refused_payment_causes_a_mail_now_and_after_two_hours() -> None:
    async with start() as test:
        order = Order(id=9, customer="Ada", cents=99_999)
        await test.publish("order.placed", order, exchange="shop")
        await test.advance("1m")
        test.assert_done("mails.wanted", times=1, message_type="refused")
        await test.advance("2h")
        test.assert_done("mails.wanted", times=2, message_type="refused")


@in_virtual_time
async def test_charge_is_parked_after_six_attempts() -> None:
    async with start() as test:
        order = Order(id=10, customer="Eve", cents=950)
        await test.publish("order.placed", order, exchange="shop")
        await test.drain()
        test.assert_retried("charges.wanted", times=5)
        test.assert_parked("charges.wanted", reason="503", times=1)


@in_virtual_time
async def test_invalid_order_is_parked_with_the_wrong_field() -> None:
    async with start() as test:
        order = {"id": 1, "customer": "Bob", "cents": -5}
        await test.publish("order.placed", order, exchange="shop")
        await test.drain()
        test.assert_parked("orders.placed", reason="cents: Input should be greater than 0")


@pytest.mark.filterwarnings("ignore")  # the test client of Starlette causes a warning
def test_fastapi_and_django_publish_orders(
    hopback_app, hopback_broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPBACK_BROKER", hopback_broker.url)
    monkeypatch.setenv("PAYMENTS_URL", "http://payments")
    hopback_app(app).stop()  # this declares the queues
    import django
    from django.conf import settings
    from django.test import RequestFactory
    from fastapi.testclient import TestClient

    settings.configure()
    django.setup()
    from orders import django_view, web

    order = {"id": 11, "customer": "Ada", "cents": 950}
    with TestClient(web.web) as client:
        assert client.post("/orders", json=order).status_code == 202
        assert client.post("/orders", json={}).status_code == 422
    request = RequestFactory().post("/orders", order, content_type="application/json")
    assert django_view.place(request).status_code == 202
    django_view.publisher.close()
    assert len(hopback_broker.snapshot().queue("orders.placed").ready) == 2
