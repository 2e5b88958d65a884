"""The pytest plugin as its users have it: a broker for each test, and applications on it."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pika  # type: ignore[import-untyped]
import pytest

from hopback import App, Depends
from hopback.cli.app import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hopback.testing import BrokerThread, StartsApp

pytestmark = pytest.mark.socket

_RETRY = {
    "x-message-ttl": 1_800_000,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "orders",
}


@pytest.fixture
def channel(hopback_broker: BrokerThread) -> Iterator[Any]:
    """A channel of pika, with two queues: `orders`, and one that waits half an hour before it."""
    connection = pika.BlockingConnection(pika.URLParameters(hopback_broker.url))
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    channel.queue_declare("orders.retry", durable=True, arguments=_RETRY)
    yield channel
    connection.close()


def test_advance_of_half_an_hour_returns_message_from_retry_queue(
    hopback_broker: BrokerThread, channel: Any
) -> None:
    channel.basic_publish("", "orders.retry", b"an order")
    assert channel.basic_get("orders", auto_ack=True)[0] is None
    assert hopback_broker.advance(1799).deadlines == 0
    assert channel.basic_get("orders", auto_ack=True)[0] is None
    assert hopback_broker.advance(1).deadlines == 1
    _, properties, body = channel.basic_get("orders", auto_ack=True)
    assert body == b"an order"
    assert properties.headers["x-death"][0]["queue"] == "orders.retry"


@pytest.mark.hopback_broker(clock="auto", version="3.10")
def test_auto_clock_jumps_when_all_clients_are_idle(channel: Any) -> None:
    channel.basic_publish("", "orders.retry", b"an order")
    for _, _, body in channel.consume("orders", inactivity_timeout=20):
        assert body == b"an order"
        break


def test_each_test_has_a_separate_broker(hopback_broker: BrokerThread) -> None:
    assert hopback_broker.snapshot().queues == ()


def test_application_retries_and_parks_within_one_advance(
    hopback_broker: BrokerThread, hopback_app: StartsApp, channel: Any
) -> None:
    """Three tiers take an hour. Each attempt runs at its time."""
    app = App("shop")
    seen: list[float] = []
    parked = threading.Event()

    @app.handler("jobs", retry=["30s", "5m", "30m"])
    async def handle(job: dict[str, int]) -> None:
        seen.append(hopback_broker.now)
        if len(seen) == 4:
            parked.set()
        raise LookupError("no such customer")

    running = hopback_app(app)
    channel.basic_publish("", "jobs", b'{"id": 13}')
    begin = hopback_broker.now
    hopback_broker.advance(3600)
    assert parked.wait(20)
    assert [round(moment - begin) for moment in seen] == [0, 30, 330, 2130]
    report = running.stop()
    assert report is not None
    assert len(running.find_events("delivery.parked")) == 1
    [dead] = hopback_broker.snapshot().queue("jobs.dlq").ready
    assert dead.body == b'{"id": 13}'


class Warehouse:
    """A dependency of a handler that is not available in tests."""

    def ship(self, order: int) -> None:
        """Ships."""
        raise ConnectionError(f"no warehouse for {order}")


class FakeWarehouse(Warehouse):
    """Records shipments."""

    shipped: ClassVar[list[int]] = []

    def ship(self, order: int) -> None:
        """Writes it down."""
        self.shipped.append(order)


def test_overrides_apply_to_one_running_application(
    hopback_broker: BrokerThread, hopback_app: StartsApp
) -> None:
    app = App("shop")

    @app.handler("orders", retry=None)
    async def handle(
        order: int, warehouse: Annotated[Warehouse, Depends(Warehouse, scope="application")]
    ) -> None:
        warehouse.ship(order)

    running = hopback_app(app, overrides={Warehouse: FakeWarehouse})
    assert run(["publish", "orders", "7", "--broker", hopback_broker.url]) == 0
    running.wait_for("delivery.done", queue="orders")
    assert FakeWarehouse.shipped == [7]
    running.stop()
    assert app.overrides == {}
    running = hopback_app(app)
    assert run(["publish", "orders", "8", "--broker", hopback_broker.url]) == 0
    running.wait_for("delivery.parked", queue="orders", reason="no warehouse for 8")


def test_unknown_marker_option_is_an_error_with_known_ones(tmp_path: Path) -> None:
    """The plugin needs no configuration."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.hopback_broker(clok='auto')\n"
        "def test_it(hopback_broker): 'A test.'\n"
    )
    without = ("-p", "no:cacheprovider", "-p", "no:schemathesis")
    command = [sys.executable, "-m", "pytest", "-q", *without, "test_it.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "expected clock and version, got clok" in ran.stdout
    assert "1 error" in ran.stdout


def test_plugin_and_test_kit_have_the_same_assertions(
    hopback_broker: BrokerThread, hopback_app: StartsApp
) -> None:
    """Assertions list the events, and events can be awaited."""
    app = App("shop")

    @app.handler("orders", retry=None)
    async def handle(order: int) -> None:
        if order == 13:
            raise LookupError("no such customer")

    running = hopback_app(app)
    for order in ("7", "13", "8"):
        assert run(["publish", "orders", order, "--broker", hopback_broker.url]) == 0
    running.wait_for("delivery.done", queue="orders", times=2)
    running.wait_for("delivery.parked", queue="orders", reason="no such customer")
    running.assert_done("orders", times=2)
    running.assert_parked("orders", times=1, attempt=1)
    assert running.find_events("delivery.done", queue="orders", attempt=2) == ()
    with pytest.raises(AssertionError, match=r"expected at least one delivery.retried .*no such"):
        running.assert_retried("orders")
    with pytest.raises(LookupError, match=r"\(orders\), got 'order'"):
        running.assert_done("order")
    with pytest.raises(TimeoutError, match=r"expected 1 delivery.held .* Events:"):
        running.wait_for("delivery.held", within=0.01)
