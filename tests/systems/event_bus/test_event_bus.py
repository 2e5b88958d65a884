"""The event bus: publishing, pushing, the status table, parking and manual retry."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from hopback import Publisher, RabbitMQ
from hopback.broker import EmbeddedBroker
from hopback.broker.embedded import EmbeddedManagement
from hopback.designs import DESIGNS
from hopback.observe.metrics import Metrics
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import GroupBy, RedriveRequest, Selection
from hopback.ops.operations import Operations
from hopback.systems import load_system
from hopback.systems.event_bus.api import create_api
from hopback.systems.event_bus.events import event_message
from hopback.systems.event_bus.push import create_push
from hopback.systems.event_bus.receiver import create_receiver
from hopback.systems.event_bus.registry import ServiceRegistry
from hopback.systems.event_bus.settings import EventBusSettings
from hopback.systems.host import Host
from hopback.systems.settings import SettingsError
from hopback.systems.web import opened
from hopback.testing import AppTest, in_virtual_time
from hopback.topology import Queue, QueueType
from tests.systems.processes import start_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_FORMS = pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
_ORDERS, _CINCOUT = "wms-orders", "wms-cincout"
_QUEUE, _DLQ = "wms.queue.wms-orders", "wms.dlq.wms-orders"


@dataclass(frozen=True, slots=True)
class _RunningSystem:
    test: AppTest
    client: httpx.AsyncClient
    sample: httpx.AsyncClient

    async def publish(self, event_type: str = "order.created", **fields: Any) -> str:
        body = {"type": event_type, "payload": {"order": 1}, **fields}
        answer = await self.client.post("/buses/wms/events", json=body)
        assert answer.status_code == 202, answer.text
        event_id: str = answer.json()["id"]
        return event_id

    async def behave(self, service: str, **behaviour: Any) -> None:
        answer = await self.sample.put(f"/{service}/behaviour", json=behaviour)
        assert answer.status_code == 200

    async def answers(self, service: str) -> list[tuple[int, int]]:
        """Return attempt and answer of each event that a service received."""
        seen = (await self.sample.get(f"/{service}/events")).json()["events"]
        return [(one["attempt"], one["answered"]) for one in seen]


class _LoopTime:
    """Virtual time for the receiver, the publisher and the operator."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()


@asynccontextmanager
async def _run_system(hardened: bool = False) -> AsyncIterator[_RunningSystem]:
    settings = EventBusSettings(receiver="http://receiver.test", hardened=hardened)
    clock = _LoopTime()
    network = httpx.ASGITransport(create_receiver(clock))
    with pytest.MonkeyPatch.context() as patch:
        # The services are function calls instead of HTTP connections.
        patch.setattr("httpx._client.AsyncHTTPTransport", lambda **_: network)
        async with (
            AppTest(create_push(settings)) as test,
            opened(create_api(settings, test.broker, clock)) as web,
            httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://bus") as client,
            httpx.AsyncClient(transport=network, base_url="http://receiver.test") as sample,
        ):
            yield _RunningSystem(test, client, sample)


@_FORMS
@in_virtual_time
async def test_published_event_is_pushed_to_every_service_once(hardened: bool) -> None:
    """Published over HTTP and from Python. Both services answer 200."""
    async with _run_system(hardened) as bus:
        await bus.publish()
        async with Publisher(bus.test.broker) as publisher:
            await publisher.send(event_message("wms", "order.paid", {"order": 1}))
        tally = await bus.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (4, 0, 0)
        assert await bus.answers(_ORDERS) == [(1, 200)] * 2
        assert await bus.answers(_CINCOUT) == [(1, 200)] * 2


@pytest.mark.parametrize("status", [429, 409, 500, 503, 404, 422, 302])
@in_virtual_time
async def test_failed_event_is_retried_after_5_s_only_for_its_service(status: int) -> None:
    """For every status of the table except 2xx and 425."""
    async with _run_system() as bus:
        await bus.behave(_ORDERS, status=status, times=2)
        began = bus.test.events[-1].at
        await bus.publish()
        tally = await bus.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (2, 2, 0)
        assert await bus.answers(_ORDERS) == [(1, status), (2, status), (3, 200)]
        assert await bus.answers(_CINCOUT) == [(1, 200)]
        assert round(bus.test.events[-1].at - began) == 10


@_FORMS
@in_virtual_time
async def test_failing_event_runs_eleven_times_and_is_parked_with_headers(
    hardened: bool,
) -> None:
    """One run and ten retries. The dead letter has queue, status and retries, and the log has the code."""
    async with _run_system(hardened) as bus:
        await bus.behave(_ORDERS, status=500)
        await bus.publish()
        tally = await bus.test.drain()
        assert (tally.done, tally.retried, tally.parked) == (1, 10, 1)
        assert len(await bus.answers(_ORDERS)) == 11
        (parked,) = bus.test.dead_letters(_QUEUE)
        headers = parked.properties.headers
        assert headers["x-original-queue"] == _QUEUE
        assert headers["x-final-status-code"] == 500
        assert headers["x-final-retry-count"] == 10
        assert "x-final-error" not in headers
        assert "x-death" in headers
        (event,) = bus.test.find_events("delivery.parked")
        assert event.fields["exhausted"]
        code = bus.test.app.codes["delivery.parked.exhausted"]
        assert code == "RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED"


@in_virtual_time
async def test_timeout_of_service_is_retried_as_exception() -> None:
    """The dead letter has the error instead of a status."""
    async with _run_system() as bus:
        await bus.behave(_ORDERS, delayMs=60_000)
        await bus.publish()
        await bus.test.drain()
        (parked,) = bus.test.dead_letters(_QUEUE)
        assert "x-final-status-code" not in parked.properties.headers
        assert parked.properties.headers["x-final-error"]


@_FORMS
@in_virtual_time
async def test_event_that_is_not_due_waits_without_counting_attempts(hardened: bool) -> None:
    """`processAfterDelayMs` gives 425 until then. Other events are not blocked."""
    async with _run_system(hardened) as bus:
        await bus.publish("order.reminder", processAfterDelayMs=12_000)
        await bus.publish("order.created")
        await bus.test.drain()
        answers = await bus.answers(_ORDERS)
        assert {attempt for attempt, _ in answers} == {1}
        assert answers[0] == (1, 425)
        assert answers[-1] == (1, 200)
        assert 200 in [status for _, status in answers[:-1]]  # the other event


@_FORMS
@pytest.mark.parametrize("delay", [None, 0, 700, 12_000])
@in_virtual_time
async def test_receiver_that_stays_at_425_is_called_at_most_30_times_a_minute(
    hardened: bool, delay: int | None
) -> None:
    fields: dict[str, Any] = {} if delay is None else {"processAfterDelayMs": delay}
    async with _run_system(hardened) as bus:
        await bus.behave(_ORDERS, status=425)
        await bus.publish(**fields)
        await bus.test.advance(180)
        assert {attempt for attempt, _ in await bus.answers(_ORDERS)} == {1}
        snoozed = bus.test.find_events("delivery.snoozed", queue=_QUEUE)
        calls = [one.at for one in snoozed]
        assert calls
        for call in calls:
            assert len([one for one in calls if call <= one < call + 1]) <= 2
            assert len([one for one in calls if call <= one < call + 60]) <= 30
        await bus.behave(_ORDERS)
        await bus.test.drain()
        assert (await bus.answers(_ORDERS))[-1] == (1, 200)


@in_virtual_time
async def test_each_http_status_has_its_own_group_and_error_label() -> None:
    statuses = (302, 404, 409, 422, 429, 500, 502, 503)
    async with _run_system() as bus:
        metrics = Metrics()
        for status in statuses:
            await bus.behave(_ORDERS, status=status)
            await bus.publish()
            await bus.test.drain()
        for one in bus.test.find_events("delivery.parked"):
            metrics(one.name, one.fields)
        assert isinstance(bus.test.broker, EmbeddedBroker)
        topologies = [bus.test.service.topology]
        async with Operations(
            ManagedBroker(bus.test.broker, topologies=topologies, clock=_LoopTime())
        ) as operations:
            session = await operations.open_session(_DLQ)
            groups = (await operations.groups(session.id, GroupBy.FINGERPRINT)).items
        assert sorted(one.sample.error for one in groups) == [f"HTTP {one}" for one in statuses]
    counted = metrics.render().decode()
    for status in statuses:
        assert f'hopback_errors_total{{error="HTTP {status}",queue="{_QUEUE}"}} 1.0' in counted


@in_virtual_time
async def test_manual_retry_continues_the_count() -> None:
    """After ten retries, one more failure parks the event at once. After the repair it is done."""
    async with _run_system() as bus:
        await bus.behave(_ORDERS, status=500)
        await bus.publish()
        await bus.test.drain()
        await _redrive_all(bus.test)
        tally = await bus.test.drain()
        assert (tally.retried, tally.parked) == (0, 1)
        await bus.behave(_ORDERS)
        await _redrive_all(bus.test)
        tally = await bus.test.drain()
        assert (tally.done, tally.parked) == (1, 0)
        assert bus.test.dead_letters(_QUEUE) == ()


@in_virtual_time
async def test_redrive_with_registered_services_keeps_the_count() -> None:
    """`--topology event-bus` does not contain the service, so the plan of the job warns."""
    settings = EventBusSettings(("noprefix",), "http://receiver.test")
    request = RedriveRequest(queue="default.dlq.noprefix", selection=Selection(), reason="repaired")
    registered = ServiceRegistry(settings, {}).topology()
    for topology, runs, warned in (
        (registered, 1, False),
        (DESIGNS["event-bus"].build(), 11, True),
    ):
        with pytest.MonkeyPatch.context() as patch:
            error_transport = httpx.MockTransport(lambda _request: httpx.Response(500))
            patch.setattr(
                "httpx._client.AsyncHTTPTransport", lambda transport=error_transport, **_: transport
            )
            async with AppTest(create_push(settings)) as test:
                await test.publish("", {"id": 1}, exchange="default.main-exchange")
                await test.drain()
                assert isinstance(test.broker, EmbeddedBroker)
                async with Operations(
                    ManagedBroker(
                        test.broker,
                        management=EmbeddedManagement(test.broker),
                        topologies=[topology],
                        clock=_LoopTime(),
                    )
                ) as operations:
                    plan = await operations.plan(request)
                    warning = "no given topology has a failure plan for default.dlq.noprefix"
                    assert any(warning in one for one in plan.warnings) is warned
                    before = len(test.find_events("delivery.retried")) + 1
                    await operations.wait((await operations.start(request)).id)
                    await test.drain()
                    after = len(test.find_events("delivery.retried")) + len(
                        test.find_events("delivery.parked")
                    )
                    assert after - before == runs


async def _redrive_all(test: AppTest) -> None:
    """Re-drive like `hopback dlq redrive`."""
    assert isinstance(test.broker, EmbeddedBroker)
    topologies = [test.service.topology]
    async with Operations(
        ManagedBroker(test.broker, topologies=topologies, clock=_LoopTime())
    ) as operations:
        request = RedriveRequest(queue=_DLQ, selection=Selection(), reason="repaired")
        job = await operations.wait((await operations.start(request)).id)
        assert job.counts.done == 1


@in_virtual_time
async def test_registered_services_are_listed_with_their_queues() -> None:
    """With the names of the document."""
    async with _run_system() as bus:
        (_, orders) = (await bus.client.get("/services")).json()["services"]
        assert orders == {
            "service": _ORDERS,
            "endpoint": "http://receiver.test/wms-orders/events",
            "queue": _QUEUE,
            "retryQueue": "wms.retry-queue.wms-orders",
            "deadLetterQueue": _DLQ,
        }


async def test_sample_receiver_answers_without_body_and_refuses_an_invalid_type() -> None:
    """A 204 must not have a body. A type that is not text is not a server error."""
    network = httpx.ASGITransport(create_receiver(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=network, base_url="http://receiver.test") as sample:
        await sample.put("/wms-orders/behaviour", json={"status": 204})
        answer = await sample.post("/wms-orders/events", json={"type": "order.created"})
        assert (answer.status_code, answer.content) == (204, b"")
        refused = await sample.put("/wms-orders/behaviour", json={"type": ["order.created"]})
        assert refused.status_code == 400, refused.text


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/buses/other/events", {"type": "x"}, 404),
        ("/buses/wms/events", {}, 400),
        ("/buses/wms/events", {"type": "x", "processAfterDelayMs": -1}, 400),
        ("/buses/wms/events", {"type": "x", "processAfterDelayMs": "soon"}, 400),
    ],
)
@in_virtual_time
async def test_event_that_cannot_be_published_is_refused(
    path: str, body: dict[str, Any], status: int
) -> None:
    """With 4xx. No service receives it."""
    async with _run_system() as bus:
        assert (await bus.client.post(path, json=body)).status_code == status
        assert (await bus.test.drain()).done == 0


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer wrong-token-of-a-client", 401),
        ("Basic first-token-of-a-client", 401),
        ("Bearer first-token-of-a-clien\u00e9", 401),
        ("Bearer first-token-of-a-client", 202),
        ("bearer second-token-of-a-client", 202),
        ("Bearer t\u00f4ken-of-a-third-\u00e0", 202),
    ],
)
@in_virtual_time
async def test_publishing_requires_one_of_the_tokens(header: str | None, status: int) -> None:
    tokens = "first-token-of-a-client, second-token-of-a-client, t\u00f4ken-of-a-third-\u00e0"
    settings = EventBusSettings.read({"PUBLISH_TOKENS": tokens})
    assert "first-token" not in repr(settings)
    headers = {} if header is None else {b"authorization": header.encode()}
    transport = httpx.ASGITransport(web := create_api(settings, EmbeddedBroker(), _LoopTime()))
    async with opened(web), httpx.AsyncClient(transport=transport, base_url="http://bus") as client:
        body = {"type": "order.created"}
        answer = await client.post("/buses/wms/events", json=body, headers=headers)
        assert answer.status_code == status
        listed = await client.get("/services", headers=headers)
        assert listed.status_code == (200 if status == 202 else 401)
        if status == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/healthz")).status_code == 200


def test_short_token_is_refused_without_showing_it() -> None:
    with pytest.raises(SettingsError, match="at least 16") as error:
        EventBusSettings.read({"PUBLISH_TOKENS": "secret"})
    assert "'secret'" not in str(error.value)


def test_list_without_tokens_is_refused() -> None:
    """Two unset variables in `$OLD,$NEW` must not allow every client to publish."""
    with pytest.raises(SettingsError, match="PUBLISH_TOKENS: expected tokens"):
        EventBusSettings.read({"PUBLISH_TOKENS": " , "})


def test_services_are_read_from_the_environment() -> None:
    """`name=url`, or a name alone for the sample receiver."""
    settings = EventBusSettings.read(
        {"SERVICES": "abc-one=https://one.test/events, plain", "RECEIVER_URL": "http://r/"}
    )
    assert settings.endpoints == {
        "abc-one": "https://one.test/events",
        "plain": "http://r/plain/events",
    }
    assert set(EventBusSettings.read({}).endpoints) == {_CINCOUT, _ORDERS}
    with pytest.raises(SettingsError, match="each service once"):
        EventBusSettings.read({"SERVICES": "a,a"})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SERVICES", "wms-orders=ftp://x", r"\[wms-orders\]: url: expected http://"),
        ("SERVICES", "-orders", "does not begin with a hyphen"),
        ("RECEIVER_URL", "localhost:8001", r"\[wms-cincout\]: url: expected http://"),
    ],
)
def test_invalid_service_is_refused_with_its_variable(name: str, value: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}.*: (.|\n)*{expected}"):
        create_push(EventBusSettings.read({name: value}), {})


def test_prefix_of_a_service_selects_its_bus() -> None:
    """`noprefix` belongs to the bus `default`."""
    app = create_push(EventBusSettings(("wms-orders", "noprefix")))
    assert set(app.handlers) == {"wms.queue.wms-orders", "default.queue.noprefix"}


def _entry(service: str, path: str = "") -> str:
    return f'[{service}]\nurl = "http://receiver.test/{path or service}/events"\n'


@in_virtual_time
async def test_services_are_added_moved_and_removed_with_their_file(tmp_path: Path) -> None:
    file = tmp_path / "services.toml"
    file.write_text(_entry(_ORDERS))
    settings = EventBusSettings(services_file=file)
    clock = _LoopTime()
    network = httpx.ASGITransport(create_receiver(clock))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._client.AsyncHTTPTransport", lambda **_: network)
        async with (
            AppTest(create_push(settings, {})) as test,
            opened(create_api(settings, test.broker, clock)) as web,
            httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://b") as client,
            httpx.AsyncClient(transport=network, base_url="http://receiver.test") as sample,
        ):
            system = _RunningSystem(test, client, sample)
            await system.publish()
            await test.advance(5)
            assert await system.answers(_ORDERS) == [(1, 200)]
            file.write_text(_entry(_ORDERS) + _entry("wms-stock"))
            await test.advance(5)
            await system.publish()
            await test.advance(5)
            assert await system.answers(_ORDERS) == [(1, 200), (1, 200)]
            assert await system.answers("wms-stock") == [(1, 200)]
            # Events published while the endpoint changes stay in the queue.
            file.write_text(_entry(_ORDERS, "orders-2") + _entry("wms-stock"))
            for _ in range(10):
                await system.publish()
                await test.advance(0.3)
            await test.advance(5)
            pushed = len(await system.answers(_ORDERS)) + len(await system.answers("orders-2"))
            assert pushed == 12
            assert await system.answers("orders-2")
            # The queue of a removed service keeps its events and receives no more.
            await system.behave("orders-2", status=503)
            await system.publish()
            await test.advance(1)
            file.write_text(_entry("wms-stock"))
            await test.advance(10)
            await system.publish()
            await test.advance(5)
            listed = (await client.get("/services")).json()["services"]
            assert [one["service"] for one in listed] == ["wms-stock"]
            assert [one.queue for one in test.service.consumers] == ["wms.queue.wms-stock"]
            assert len(test.broker.snapshot().queue(_QUEUE).messages) == 1
            # A file that cannot be read changes nothing. The next valid file is followed.
            for unreadable in (b"this is not [TOML", b"\xff\xfe", b"x = " + b"[" * 5000):
                file.write_bytes(unreadable)
                await test.advance(5)
            await system.publish()
            await test.advance(5)
            assert len(await system.answers("wms-stock")) == 14
            file.write_text(_entry("wms-stock") + _entry("wms-new"))
            await test.advance(5)
            await system.publish()
            await test.advance(5)
            assert await system.answers("wms-new") == [(1, 200)]


@pytest.mark.parametrize("name", ["SERVICES", "SERVICES_FILE", "PUBLISH_TOKENS"])
async def test_demo_publishes_to_the_sample_services_only(name: str, tmp_path: Path) -> None:
    """Its traffic must neither reach real services nor be refused, whatever the shell has set."""
    file = tmp_path / "services.toml"
    file.write_text(_entry("abc-real"))
    given = {
        "SERVICES": "abc-real=http://receiver.test/",
        "SERVICES_FILE": str(file),
        "PUBLISH_TOKENS": "token-of-a-publisher",
    }
    variables = {name: given[name]}
    host = Host(EmbeddedBroker(), "", tmp_path, "http://demo.test", variables=variables)
    async with load_system("event-bus").start(host) as started:
        (service,) = started.services
        assert [one.queue for one in service.consumers] == ["wms.queue.wms-cincout", _QUEUE]
        transport = httpx.ASGITransport(started.web)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=host.url) as client:
            answer = await client.post("/buses/wms/events", json={"type": "order.created"})
            assert answer.status_code == 202, answer.text


@pytest.mark.broker
def test_service_that_cannot_be_consumed_is_named_and_depths_are_shown(
    amqp_url: str, tmp_path: Path
) -> None:
    """On RabbitMQ `wms.queue.wms-orders` exists with a different type. `wms-stock` can be consumed."""
    asyncio.run(_declare(amqp_url, Queue(_QUEUE, QueueType.CLASSIC)))
    file = tmp_path / "services.toml"
    file.write_text('[wms-orders]\nurl = "http://127.0.0.1:9/"\n')
    command = ("hopback", "run", "hopback.systems.event_bus.parts:push", "--broker", amqp_url)
    settings = {"SERVICES_FILE": str(file)}
    with start_process(tmp_path / "push", *command, "--http", "127.0.0.1:0", **settings) as process:
        url = process.wait_for_output(r"listening on (http://[\d.:]+)")

        def ready() -> Any:
            return httpx.get(f"{url}/readyz", trust_env=False).json()

        def metrics() -> str:
            return httpx.get(f"{url}/metrics", trust_env=False).text

        def is_named() -> bool:
            return f"{_QUEUE} is starting: queue" in str(ready()["reasons"])

        process.wait_until(is_named)
        file.write_text(file.read_text().replace("wms-orders", "wms-stock"))
        process.wait_until(lambda: ready()["ok"])
        assert ready()["consumers"] == {"wms.queue.wms-stock": "consuming"}
        depth = 'queue="wms.dlq.wms-stock",role="dead-letter"} 0.0'
        process.wait_until(lambda: depth in metrics())
        assert process.end() == 0


async def _declare(url: str, queue: Queue) -> None:
    connection = await RabbitMQ(url).connect("test")
    await (await connection.open_channel()).declare_queue(queue)
    await connection.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[wms-orders]", "url"),
        ('[wms-orders]\nurl = "ftp://x"', "http://host/path"),
        ('[wms-orders]\nurl = "http://x/"\ntoken = "t"', "token"),
        ('[wms-orders]\nurl = "http://x/"\nbearer_env = "UNSET"', "a variable that is set"),
        ('[wms-orders]\nurl = "http://x/"\nheaders = {host = "y"}', "headers.host"),
        ("", "at least one service"),
    ],
)
def test_invalid_services_file_is_refused_with_the_reason(
    tmp_path: Path, text: str, expected: str
) -> None:
    """At the start, with the name of the service and the expected value."""
    file = tmp_path / "services.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=expected):
        create_push(EventBusSettings(services_file=file), {})


def test_secrets_of_a_service_come_from_variables_and_are_not_shown(tmp_path: Path) -> None:
    """The file and the representation of the target do not contain them."""
    file = tmp_path / "services.toml"
    file.write_text('[wms-orders]\nurl = "http://x/"\nbearer_env = "T"\nsecret_env = "S"\n')
    registry = ServiceRegistry(EventBusSettings(services_file=file), {"T": "tick", "S": "hush"})
    target = registry.targets()["wms-orders"]
    assert (target.bearer, target.secret) == ("tick", "hush")
    assert "tick" not in repr(target)
    assert "hush" not in repr(target)
