"""Ratatoskr: typed events, transient and permanent failures, idempotence."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from hopback import ServiceOptions
from hopback.errors import UnsafeOperation
from hopback.systems.ratatoskr.api import create_api
from hopback.systems.ratatoskr.consumer import create_consumer
from hopback.systems.ratatoskr.demo import KNOWN_HAZARDS
from hopback.systems.ratatoskr.settings import RatatoskrSettings
from hopback.systems.settings import SettingsError
from hopback.systems.web import opened
from hopback.testing import AppTest, Fault, in_virtual_time
from hopback.topology import QueueType
from tests.docs.pages import blocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_FORMS = pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
_QUEUE = "my-service.events"


@dataclass(frozen=True, slots=True)
class _RunningSystem:
    test: AppTest
    client: httpx.AsyncClient

    async def publish(self, kind: str, key: str | None = None, **fields: Any) -> None:
        headers = {} if key is None else {"idempotency-key": key}
        body = {"type": kind, **fields}
        answer = await self.client.post("/events", json=body, headers=headers)
        assert answer.status_code == 202, answer.text

    async def place(self, order: str, sku: str = "acorn", quantity: int = 2) -> None:
        await self.publish("order.placed", order=order, sku=sku, quantity=quantity)

    async def state(self, order: str) -> str | None:
        answer = await self.client.get(f"/orders/{order}")
        return answer.json()["state"] if answer.status_code == 200 else None

    async def warehouse(self, *, is_open: bool) -> None:
        answer = await self.client.put("/warehouse", json={"open": is_open})
        assert answer.status_code == 200


@asynccontextmanager
async def _run_system(
    folder: Path, *, hardened: bool = False, **changes: Any
) -> AsyncIterator[_RunningSystem]:
    settings = RatatoskrSettings(f"sqlite:///{folder}/ratatoskr.db", hardened, **changes)
    options = ServiceOptions(accept=KNOWN_HAZARDS)
    async with (
        AppTest(create_consumer(settings), options=options) as test,
        opened(create_api(settings, test.broker)) as web,
        httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://r") as client,
    ):
        yield _RunningSystem(test, client)


@_FORMS
@in_virtual_time
async def test_events_are_decoded_by_type_and_change_the_order(
    tmp_path: Path, hardened: bool
) -> None:
    """An order is placed, paid and shipped. All three queues are quorum queues."""
    async with _run_system(tmp_path, hardened=hardened) as shop:
        await shop.place("o1")
        await shop.test.drain()
        assert await shop.state("o1") == "placed"
        await shop.publish("payment.received", order="o1", cents=10)
        await shop.publish("order.shipped", order="o1")
        tally = await shop.test.drain()
        assert tally.parked == 0
        assert await shop.state("o1") == "shipped"
        kinds = {queue.type for queue in shop.test.service.topology.queues}
        assert kinds == {QueueType.QUORUM}


@_FORMS
@in_virtual_time
async def test_transient_failure_is_retried_after_the_retry_delay(
    tmp_path: Path, hardened: bool
) -> None:
    """The warehouse is closed for eight seconds. The third run, after ten seconds, places the order."""
    async with _run_system(tmp_path, hardened=hardened) as shop:
        await shop.warehouse(is_open=False)
        await shop.place("o1")
        await shop.test.advance(8)
        await shop.warehouse(is_open=True)
        tally = await shop.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (1, 2, 0)
        assert await shop.state("o1") == "placed"


@_FORMS
@in_virtual_time
async def test_message_is_parked_after_max_retries_with_their_number(
    tmp_path: Path, hardened: bool
) -> None:
    """If the warehouse stays closed: four runs, then the DLQ with `x-retry-count` 3."""
    async with _run_system(tmp_path, hardened=hardened) as shop:
        await shop.warehouse(is_open=False)
        await shop.place("o1")
        tally = await shop.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (0, 3, 1)
        (parked,) = shop.test.dead_letters(_QUEUE)
        assert parked.properties.headers["x-retry-count"] == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"order": "o1", "sku": "coconut", "quantity": 1},
        {"order": "o1", "sku": "acorn", "quantity": 0},
        {"order": "o1", "sku": "acorn", "quantity": "two"},
        {"order": "o1"},
    ],
    ids=["unknown sku", "no quantity", "wrong type", "missing fields"],
)
@in_virtual_time
async def test_permanent_failure_is_parked_at_once(tmp_path: Path, fields: Any) -> None:
    """After one run, without retries."""
    async with _run_system(tmp_path) as shop:
        await shop.publish("order.placed", **fields)
        tally = await shop.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (0, 0, 1)
        assert await shop.state("o1") is None


@in_virtual_time
async def test_payment_of_wrong_amount_is_parked_and_rolled_back(tmp_path: Path) -> None:
    """The order stays unpaid."""
    async with _run_system(tmp_path) as shop:
        await shop.place("o1")
        await shop.test.drain()
        await shop.publish("payment.received", order="o1", cents=1)
        assert (await shop.test.drain()).parked == 1
        assert await shop.state("o1") == "placed"


@in_virtual_time
async def test_payment_before_its_order_is_retried_and_applied(tmp_path: Path) -> None:
    """The payment waits in the retry queue."""
    async with _run_system(tmp_path) as shop:
        await shop.publish("payment.received", order="o1", cents=10)
        await shop.test.advance(1)
        await shop.place("o1")
        tally = await shop.test.drain()
        assert (tally.done, tally.retried) == (2, 1)
        assert await shop.state("o1") == "paid"


@_FORMS
@in_virtual_time
async def test_event_delivered_twice_has_one_effect(tmp_path: Path, hardened: bool) -> None:
    """After a lost ack and after a second publish. The inbox recognises both."""
    async with _run_system(tmp_path, hardened=hardened) as shop:
        shop.test.faults.inject(Fault.CUT_BEFORE_SETTLE)
        placed = {"order": "o1", "sku": "acorn", "quantity": 2}
        await shop.publish("order.placed", key="event-1", **placed)
        assert (await shop.test.drain()).done == 2  # the first ack was lost with the connection
        await shop.publish("order.placed", key="event-1", **placed)
        tally = await shop.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (1, 0, 0)
        assert await shop.state("o1") == "placed"


@in_virtual_time
async def test_documented_form_does_not_start_on_4_0_unless_errors_are_accepted(
    tmp_path: Path,
) -> None:
    """On 4.0 it starts only if its known hazards are accepted by name. The hardened form has none."""
    faithful = RatatoskrSettings(f"sqlite:///{tmp_path}/r.db")
    with pytest.raises(UnsafeOperation, match="delivery-limit-feeds-retry"):
        async with AppTest(create_consumer(faithful)):
            pytest.fail("the consumer must not start")
    async with AppTest(
        create_consumer(RatatoskrSettings(f"sqlite:///{tmp_path}/r.db", hardened=True))
    ):
        pass


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "order.placed", "order": "o1"}, ".sku: expected a value"),
        (
            {"type": "order.placed", "order": "o1", "sku": "acorn", "quantity": "two"},
            ".quantity: expected an integer",
        ),
        ({"type": "payment.received", "order": "o1"}, ".cents: expected a value"),
    ],
)
@in_virtual_time
async def test_dead_letter_names_the_invalid_field(
    tmp_path: Path, event: dict[str, Any], expected: str
) -> None:
    """`type` selects the class, so the reason refers to its fields."""
    async with _run_system(tmp_path) as shop:
        assert (await shop.client.post("/events", json=event)).status_code == 202
        await shop.test.drain()
        shop.test.assert_parked(_QUEUE, times=1, reason=expected)


@in_virtual_time
async def test_second_payment_is_parked(tmp_path: Path) -> None:
    """A retry cannot succeed, because the order is already paid. An early payment is still retried."""
    async with _run_system(tmp_path) as shop:
        await shop.place("o1")
        await shop.test.drain()
        for _ in range(2):
            await shop.publish("payment.received", order="o1", cents=10)
        tally = await shop.test.drain()
        assert (tally.retried, tally.parked) == (0, 1)
        shop.test.assert_parked(_QUEUE, times=1, reason="order o1 is already paid")


@_FORMS
@in_virtual_time
async def test_retry_count_header_is_on_dead_letters_and_on_published_retries(
    tmp_path: Path, hardened: bool
) -> None:
    """A rejected message keeps its headers, so only the dead letter has it. In the hardened form
    every retry has it.
    """
    async with _run_system(tmp_path, hardened=hardened) as shop:
        await shop.warehouse(is_open=False)
        await shop.place("o1")
        await shop.test.advance(1)
        (waiting,) = shop.test.broker.snapshot().queue(f"{_QUEUE}.retry").messages
        assert waiting.properties.headers.get("x-retry-count") == (1 if hardened else None)
        await shop.test.drain()
        (dead,) = shop.test.broker.snapshot().queue(f"{_QUEUE}.dlq").messages
        assert dead.properties.headers["x-retry-count"] == 3


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/events", {"type": "order.eaten"}, 400),
        ("PUT", "/warehouse", {"open": "yes"}, 400),
        ("GET", "/orders/none", None, 404),
    ],
)
@in_virtual_time
async def test_invalid_requests_return_4xx_with_an_error(
    tmp_path: Path, method: str, path: str, body: Any, status: int
) -> None:
    async with _run_system(tmp_path) as shop:
        answer = await shop.client.request(method, path, json=body)
        assert answer.status_code == status
        assert answer.json()["error"]


def test_parameters_of_the_document_are_read_from_the_environment() -> None:
    """Names, delay, retries and type. The defaults are those of the document."""
    assert RatatoskrSettings.read({}) == RatatoskrSettings()
    settings = RatatoskrSettings.read(
        {
            "RATATOSKR_QUEUE": "orders",
            "RATATOSKR_EXCHANGE": "shop",
            "RATATOSKR_ROUTING_KEYS": "order.*,payment.*",
            "RATATOSKR_RETRY_DELAY_MS": "1000",
            "RATATOSKR_MAX_RETRIES": "5",
            "RATATOSKR_QUEUE_TYPE": "classic",
        }
    )
    topology = settings.topology()
    assert [queue.name for queue in topology.queues] == ["orders", "orders.retry", "orders.dlq"]
    assert {queue.type for queue in topology.queues} == {QueueType.CLASSIC}
    assert topology.plans[0].attempts == 6
    with pytest.raises(SettingsError, match="quorum or classic"):
        RatatoskrSettings.read({"RATATOSKR_QUEUE_TYPE": "stream"})


@in_virtual_time
async def test_two_queues_of_one_process_have_separate_plans() -> None:
    """Runs the example of the README."""
    page = import_module("hopback.systems.ratatoskr").__file__
    assert page is not None
    text = Path(page).with_name("README.md").read_text(encoding="utf-8")
    [code] = [one.text for one in blocks(text) if one.language == "python"]
    names: dict[str, Any] = {}
    exec(code, names)
    async with AppTest(names["app"]) as test:
        await test.publish("order.placed", {"order": "o1"}, exchange="ratatoskr.events")
        await test.publish("payment.received", {"order": "o1"}, exchange="ratatoskr.events")
        tally = await test.drain()
        assert (tally.done, tally.retried, tally.parked) == (1, 8, 1)
        test.assert_parked("shop.billing", times=1, reason="the bank does not answer")
