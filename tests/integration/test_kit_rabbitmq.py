"""The test kit on a real RabbitMQ: the same test, in real time."""

from __future__ import annotations

import pytest

from hopback import App, Context, RabbitMQ
from hopback.broker.embedded import run_virtual
from hopback.errors import Returned
from hopback.testing import AppTest, Tally

pytestmark = pytest.mark.broker


def _shop() -> App:
    app = App("shop")

    @app.handler("kit.orders", retry=["50ms"])
    async def handle(order: int, context: Context) -> None:
        if order == 13:
            raise LookupError("no such customer")
        if order == 7 and context.attempt == 1:
            raise ConnectionError("the warehouse does not answer")

    return app


async def test_same_test_runs_on_rabbitmq_and_embedded_broker(amqp_url: str) -> None:
    async with AppTest(_shop(), broker=RabbitMQ(amqp_url)) as test:
        for order in (1, 7, 13):
            await test.publish("kit.orders", order)
        assert await test.drain() == Tally(done=2, retried=2, parked=1)
        test.assert_done("kit.orders", times=2)
        test.assert_parked("kit.orders", reason="no such customer", attempt=2)
        (dead_letter,) = test.dead_letters("kit.orders")
        assert dead_letter.body == b"13"
        with pytest.raises(Returned):
            await test.publish("nowhere", 1)
        await test.publish("kit.orders", 2)
        assert await test.drain() == Tally(done=1)
        with pytest.raises(RuntimeError, match="with the embedded broker"):
            test.faults.clear()
    assert test.report is not None
    assert test.report.clean


def test_virtual_time_is_refused_on_rabbitmq_with_remedy(amqp_url: str) -> None:
    async def main() -> None:
        async with AppTest(_shop(), broker=RabbitMQ(amqp_url)):
            raise AssertionError("expected a refusal")

    with pytest.raises(RuntimeError, match=r"runs in real time\. Run this test without"):
        run_virtual(main())
