"""Liveness, readiness, depths and commands of a service on the embedded broker, in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, BreakerPolicy
from hopback.broker.embedded import Fault
from hopback.designs import DESIGNS
from hopback.endpoint import Request, is_loopback
from hopback.private_files import control_socket
from hopback.runtime.depths import Depths, Watched, queues_to_watch
from hopback.runtime.health import ControlEndpoint, Health
from hopback.runtime.queue_readings import (
    HeldBackWatch,
    QueueReadings,
    consumer_timeouts,
    held_back,
)
from hopback.testing import AppTest, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hopback.broker.management.readings import QueueReading
    from hopback.endpoint import Response


def _app(*, breaker: BreakerPolicy | None = None) -> App:
    app = App("shop")

    @app.handler("orders", retry=["1s"], breaker=breaker)
    async def handle(payload: str) -> None:
        if payload == "fail":
            raise ValueError("no")

    return app


def _health(test: AppTest, *, patience: float = 60.0) -> Health:
    return Health(test.service, time=asyncio.get_running_loop().time, patience=patience)


@in_virtual_time
async def test_consuming_service_is_alive_and_ready() -> None:
    async with AppTest(_app()) as test:
        health = _health(test)
        assert health.alive().ok
        found = health.ready()
        assert found.ok
        assert found.consumers == {"orders": "consuming"}
        assert found.connections == {"consuming": "ready", "publishing": "ready"}
    assert not health.ready().ok
    assert health.alive().ok


@in_virtual_time
async def test_unreachable_broker_ends_readiness_but_not_liveness() -> None:
    """A restart would not help."""
    async with AppTest(_app()) as test:
        health = _health(test)
        asking = asyncio.create_task(health.run())
        test.broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
        test.broker.cut()
        await test.advance(3600)
        assert not health.ready().ok
        assert health.alive().ok
        test.broker.faults.clear()
        await test.advance(120)
        assert health.ready().ok
        asking.cancel()


@in_virtual_time
async def test_lost_consumer_ends_liveness_after_timeout() -> None:
    async with AppTest(_app()) as test:
        now = 0.0
        health = Health(test.service, time=lambda: now, patience=60)
        consumer = test.service.consumer("orders")
        intake, consumer._intake = consumer._intake, None  # the broker does not know it any more
        assert health.alive().ok
        now = 60
        assert health.alive().ok
        now = 61
        found = health.alive()
        assert found.reasons == ("orders has had no consumer for 61 s though the broker is up",)
        consumer._intake = intake
        assert health.alive().ok
        consumer._intake = None
        now = 100
        assert health.alive().ok
        consumer._intake = intake
        consumer.restore("found to be forgotten")
        await test.advance(60)


@in_virtual_time
async def test_paused_queue_is_alive_and_not_ready() -> None:
    async with AppTest(_app(breaker=BreakerPolicy(failures=1, cool_down=1000))) as test:
        health = _health(test, patience=1)
        test.service.consumer("orders").pause("by command")
        await test.advance(100)
        assert health.ready().reasons == ("orders is paused",)
        assert health.alive().ok
        test.service.consumer("orders").resume("by command")
        await test.advance(1)
        assert health.ready().ok
        await test.publish("orders", "fail")
        await test.advance(1)
        assert health.ready().reasons == ("orders is paused: everything fails",)
        assert health.alive().ok


# --- commands --------------------------------------------------------------------------------------


def _asked(method: str, path: str) -> Request:
    return Request(method, path)


def _read(response: Response) -> tuple[int, Any]:
    return response.status, json.loads(response.body)


@in_virtual_time
async def test_probes_answer_200_or_503_with_reasons() -> None:
    async with AppTest(_app()) as test:
        control = ControlEndpoint(test.service, _health(test))
        for path in ("/healthz", "/readyz", "/readyz/"):
            status, said = _read(await control(_asked("GET", path)))
            assert (status, said["ok"], said["reasons"]) == (200, True, [])
        test.service.consumer("orders").pause("by command")
        status, said = _read(await control(_asked("HEAD", "/readyz")))
        assert (status, said["reasons"]) == (503, ["orders is paused"])
        status, said = _read(await control(_asked("GET", "/")))
        assert status == 404
        assert "/healthz" in said["error"]


@in_virtual_time
async def test_metrics_without_extra_name_it() -> None:
    async with AppTest(_app()) as test:
        bare = ControlEndpoint(test.service, _health(test))
        status, said = _read(await bare(_asked("GET", "/metrics")))
        assert (status, said["error"].split(":")[0]) == (501, "metrics need the extra `metrics`")
        full = ControlEndpoint(test.service, _health(test), lambda: ("text/plain", b"up 1\n"))
        answer = await full(_asked("GET", "/metrics"))
        assert (answer.status, answer.content_type, answer.body) == (200, "text/plain", b"up 1\n")


@in_virtual_time
async def test_queue_is_paused_and_resumed_by_command() -> None:
    async with AppTest(_app()) as test:
        control = ControlEndpoint(test.service, _health(test))
        status, said = _read(await control.command(_asked("POST", "/queues/orders/pause")))
        assert (status, said) == (200, {"queue": "orders", "state": "paused"})
        await test.service.consumer("orders").wait_paused()
        await test.publish("orders", "ok")
        await test.advance(100)
        assert test.find_events("delivery.done") == ()
        assert (await control.command(_asked("POST", "/queues/orders/resume"))).status == 200
        await test.drain()
        test.assert_done("orders", times=1)
        status, said = _read(await control.command(_asked("POST", "/queues/no%2Fsuch/pause")))
        assert status == 404
        assert "'no/such'" in said["error"]


@in_virtual_time
async def test_http_port_accepts_no_commands() -> None:
    async with AppTest(_app()) as test:
        control = ControlEndpoint(test.service, _health(test))
        answer = await control(_asked("POST", "/queues/orders/pause"))
        assert answer.status == 404
        assert test.service.consumer("orders").is_consuming


@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "TMPDIR"])
def test_control_socket_is_in_private_folder(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    folder = control_socket(8080).parent
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match=r"expected .* with mode 0700, got .* mode 0755"):
        control_socket(8080)
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        control_socket(8080)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_only_numeric_loopback_addresses_are_local(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


# --- depths ----------------------------------------------------------------------------------------


def test_queues_of_plans_are_watched_once() -> None:
    topology = DESIGNS["freeflow"].build({}, hardened=False)
    found = queues_to_watch(topology, [plan.queue for plan in topology.plans])
    names = [one.queue for one in found]
    assert len(names) == len(set(names))
    parked = {plan.parking.queue for plan in topology.plans}
    assert {one.queue for one in found if one.role == "dead-letter"} == parked
    assert {one.queue for one in found if one.role == "main"} == {
        plan.queue for plan in topology.plans
    }
    assert queues_to_watch(topology, ["unknown"]) == ()


@in_virtual_time
async def test_depths_are_removed_when_connection_ends() -> None:
    async with AppTest(_app()) as test:
        test.service.consumer("orders").pause("by command")
        await test.service.consumer("orders").wait_paused()
        await test.publish("orders", "ok")
        told: dict[str, list[int | None]] = {}
        queues = [Watched("gone", "retry"), *queues_to_watch(test.app.topology, ["orders"])]
        depths = Depths(lambda: queues, _into(told), every=5)
        connection = await test.broker.connect("depths")
        counting = asyncio.create_task(depths.attend(connection))
        await test.advance(1)
        await test.publish("orders", "ok")
        await test.advance(5)
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        await connection.close()
        test.service.consumer("orders").resume("by command")
        await test.drain()
    assert told == {
        "gone retry": [None, None, None],
        "orders main": [1, 2, None],
        "orders.retry.1s retry": [0, 0, None],
        "orders.dlq dead-letter": [0, 0, None],
    }


def _into(told: dict[str, list[int | None]]) -> Callable[[str, str, int | None], object]:
    return lambda queue, role, count: told.setdefault(f"{queue} {role}", []).append(count)


async def _readings(*answers: list[dict[str, Any]] | int) -> list[Sequence[QueueReading] | None]:
    """Return the readings for these answers of the management API."""
    import httpx

    from hopback.broker.management import Management, ManagementAddress

    left = list(answers)
    received: list[Sequence[QueueReading] | None] = []

    async def until_none_is_left(_seconds: float) -> None:
        if not left:
            raise asyncio.CancelledError

    def answer(_request: httpx.Request) -> httpx.Response:
        content = left.pop(0)
        return (
            httpx.Response(content)
            if isinstance(content, int)
            else httpx.Response(200, json=content)
        )

    transport = httpx.MockTransport(answer)
    address = ManagementAddress.derive("amqp://localhost/", None)
    async with Management(address, transport=transport) as management:
        reader = QueueReadings(management, "/", [received.append], sleep=until_none_is_left)
        with pytest.raises(asyncio.CancelledError):
            await reader.attend(None)  # type: ignore[arg-type]
    return received


async def test_consumer_timeouts_are_read_from_arguments_and_policies() -> None:
    """The shorter one counts."""
    by_argument = {"name": "a", "vhost": "/", "arguments": {"x-consumer-timeout": 90_000}}
    policy = {"policy": "p", "effective_policy_definition": {"consumer-timeout": 60_000}}
    found: list[dict[str, Any]] = [
        by_argument,
        by_argument | policy | {"name": "b"},
        {"name": "c", "vhost": "/"},
    ]
    (readings,) = await _readings(found)
    assert dict(consumer_timeouts(readings)) == {"a": 90.0, "b": 60.0}


async def test_held_back_messages_are_read_from_management_api() -> None:
    queues = [Watched("orders", "main"), Watched("orders.dlq", "dead-letter")]
    first, second = await _readings([{"name": "orders", "vhost": "/", "messages_dlx": 3}], 500)
    assert held_back(first, queues) == {"orders": 3}
    assert second is None
    assert held_back(second, queues) == {"orders": None}


async def test_held_back_messages_of_removed_queue_become_unknown() -> None:
    told: list[tuple[object, ...]] = []
    queues = [Watched("orders", "main"), Watched("orders.retry.1s", "retry")]
    (readings,) = await _readings([{"name": "orders", "vhost": "/", "messages_dlx": 3}])
    watch = HeldBackWatch(lambda: queues, lambda *found: told.append(found))
    watch.receive(readings)
    assert told == [("orders", 3), ("orders.retry.1s", None)]
    queues.clear()
    watch.receive(readings)
    assert told[2:] == [("orders", None), ("orders.retry.1s", None)]
