"""`hopback run` as developers and orchestrators meet it: processes, signals, probes, reports."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from hopback import RabbitMQ, compose
from hopback.topology import Queue
from tests.acceptance.running import Running, running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.conftest import Installed
    from tests.harness.shared import SharedNode


_SHOP = """
import asyncio, os
from hopback import App

app = App("shop")

@app.handler("orders", retry=["1s"], attempts=2)
async def handle(order: dict) -> None:
    print("handling", order["do"], os.getpid(), flush=True)
    if order["do"] == "fail":
        raise ValueError("no")
    if order["do"] == "wait":
        await asyncio.sleep(600)
"""
_STUCK = """
import threading
from hopback import App
app = App("stuck")

@app.handler("orders", retry=["1s"])
def handle(order: dict) -> None:
    print("handling", flush=True)
    threading.Event().wait()
"""
_DESIGN = """
from hopback import App
from hopback.designs import DESIGNS
app = App("design", topology=DESIGNS[{name!r}].build({{}}, hardened=False))

@app.handler(app.topology.plans[0].queue)
async def handle(event: dict) -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an application."""
    (tmp_path / "shop.py").write_text(_SHOP)
    return tmp_path


def _publish(url: str, *does: str) -> None:
    async def send() -> None:
        connection = await RabbitMQ(url).connect("test")
        channel = await connection.open_channel()
        for do in does:
            await channel.publish(compose("orders", {"do": do, "card": "4711-secret"}))
        await connection.close()

    asyncio.run(send())


def _count_ready(url: str) -> int:
    """How many messages the broker has ready."""

    async def count() -> int:
        connection = await RabbitMQ(url).connect("test")
        channel = await connection.open_channel()
        state = await channel.declare_queue(Queue("orders"), passive=True)
        await connection.close()
        return state.messages

    return asyncio.run(count())


def _is_ready(service: Running) -> bool:
    return bool(service.said("consumer.started"))


def test_application_runs_on_embedded_broker_and_stops_on_sigterm(
    installed: Installed, folder: Path
) -> None:
    """Probes, metrics and traces work."""
    options = ("--broker", "embedded", "--http", "0", "--otel")
    with running(installed, folder, "shop:app", *options) as service:
        service.until(lambda: _is_ready(service))
        service.until(lambda: "ready, consuming orders" in service.err)
        assert service.get("/healthz")[0] == 200
        assert service.get("/readyz")[0] == 200
        service.until(lambda: 'hopback_queue_depth{queue="orders"' in service.get("/metrics")[1])
        assert service.end(signal.SIGTERM) == 0
    assert service.out.startswith("The broker of this process, in memory: amqp://")
    assert service.out.endswith("\nStopped. 0 deliveries settled.\n")
    assert [line["step"] for line in service.said("shutdown.step")] == [1, 2, 3, 4, 5]


@pytest.mark.broker
def test_messages_are_handled_retried_parked_and_logged(
    installed: Installed, folder: Path, amqp_url: str
) -> None:
    """The log contains each failure and no payload."""
    options = ("--broker", amqp_url, "--http", "0", "--log-level", "debug")
    with running(installed, folder, "shop:app", *options) as service:
        service.until(lambda: _is_ready(service))
        _publish(amqp_url, "work", "fail")
        service.until(lambda: service.said("delivery.parked"))
        metrics = service.get("/metrics")[1]
        assert service.end(signal.SIGINT) == 0
    assert 'hopback_deliveries_total{outcome="done",queue="orders"} 1.0' in metrics
    assert 'hopback_deliveries_total{outcome="retry",queue="orders"} 1.0' in metrics
    assert 'hopback_parked_total{exhausted="true",queue="orders"} 1.0' in metrics
    (parked,) = service.said("delivery.parked")
    assert (parked["outcome"], parked["attempt"], parked["maxAttempts"]) == ("park", 2, 2)
    assert "secret" not in json.dumps(service.log)
    assert "Stopped. 3 deliveries settled." in service.out


@pytest.mark.broker
def test_metrics_and_warning_show_what_only_the_management_api_knows(
    installed: Installed, folder: Path, rabbitmq: SharedNode, vhost: str
) -> None:
    body = {"pattern": "^orders", "definition": {"message-ttl": 500}, "apply-to": "queues"}
    rabbitmq.management.call("PUT", f"/policies/{vhost}/short", body)
    access = ("--broker", rabbitmq.url + vhost, "--management", rabbitmq.management_url)
    with running(installed, folder, "shop:app", *access, "--http", "0") as service:
        service.until(lambda: service.said("topology.warning", rule="policy-changes-waits"))
        metrics = service.get("/metrics")[1]
        assert service.end(signal.SIGINT) == 0
    assert re.search(r"^hopback_changed_waits [1-9]", metrics, re.MULTILINE)
    assert re.search(r'^hopback_dead_letters_held_back\{queue="orders"\} ', metrics, re.MULTILINE)


@pytest.mark.broker
def test_queue_is_paused_and_resumed_by_command(
    installed: Installed, folder: Path, amqp_url: str
) -> None:
    """The commands find the control socket by the port of the service."""
    with running(installed, folder, "shop:app", "--http", "0", HOPBACK_BROKER=amqp_url) as service:
        service.until(lambda: _is_ready(service))
        port = service.urls[-1].rpartition(":")[2]
        paused = installed.run("pause", "orders", "--http", port)
        assert (paused.returncode, paused.stdout) == (0, f"orders is paused at 127.0.0.1:{port}\n")
        assert service.get("/readyz")[0] == 503
        _publish(amqp_url, "work")
        assert installed.run("pause", "no.such", "--http", port).returncode == 5
        assert service.out == ""
        assert installed.run("resume", "orders", "--http", port).returncode == 0
        service.until(lambda: "handling work" in service.out)
        assert service.end(signal.SIGTERM) == 0
    gone = installed.run("pause", "orders", "--http", port)
    assert gone.returncode == 7
    assert "no service of this user answers" in gone.stderr


def test_thread_that_never_returns_does_not_keep_process(
    installed: Installed, folder: Path
) -> None:
    (folder / "stuck.py").write_text(_STUCK)
    options = ("--broker", "embedded", "--grace", "200ms")
    with running(installed, folder, "stuck:app", *options) as service:
        service.until(lambda: _is_ready(service))
        url = service.out.split("memory: ")[1].split()[0]
        _publish(url, "wait")
        service.until(lambda: "handling" in service.out)
        assert service.end(signal.SIGTERM) == 3
    assert "orders: 1 interrupted" in service.out


@pytest.mark.broker
@pytest.mark.parametrize(("grace", "signals", "code"), [("30", 2, 130), ("0.2", 1, 3)])
def test_interrupted_message_is_reported_and_kept(
    installed: Installed, folder: Path, amqp_url: str, grace: str, signals: int, code: int
) -> None:
    """A second signal or the end of the grace period interrupts it."""
    options = ("shop:app", "--broker", amqp_url, "--grace", grace)
    with running(installed, folder, *options) as service:
        service.until(lambda: _is_ready(service))
        _publish(amqp_url, "wait")
        service.until(lambda: "handling wait" in service.out)
        assert service.end(signal.SIGTERM, times=signals) == code
    assert "orders: 1 interrupted; the broker delivers them again." in service.out
    assert _count_ready(amqp_url) == 1


def test_service_waits_for_unreachable_broker(installed: Installed, folder: Path) -> None:
    """It is alive, not ready, and stops at the first signal."""
    options = ("shop:app", "--broker", "amqp://guest:hunter2@127.0.0.1:1/", "--http", "0")
    with running(installed, folder, *options) as service:
        service.until(lambda: [one for one in service.said("connection.state") if one["reason"]])
        assert service.get("/healthz")[0] == 200
        assert service.get("/readyz")[0] == 503
        assert service.end(signal.SIGTERM) == 0
    assert "hunter2" not in json.dumps(service.log)
    advice = [line for line in service.log if "Check address" in line.get("message", "")]
    assert len(advice) == 1


def test_topology_error_refuses_start_unless_accepted(installed: Installed, folder: Path) -> None:
    (folder / "design.py").write_text(_DESIGN.format(name="ratatoskr"))
    ran = installed.run("run", "design:app", "--broker", "embedded", cwd=folder)
    assert ran.returncode == 1
    assert "is not started on RabbitMQ 4.0" in ran.stderr
    assert "--accept RULE" in ran.stderr
    lines = [line for line in ran.stderr.splitlines() if line.startswith("  ")]
    rules = {line.split()[0] for line in lines if " at " in line}
    assert rules
    accepted = [f"--accept={rule}" for rule in rules]
    with running(installed, folder, "design:app", "--broker", "embedded", *accepted) as service:
        service.until(lambda: _is_ready(service))
        assert service.end(signal.SIGTERM) == 0


def test_faithful_design_logs_each_warning_once(installed: Installed, folder: Path) -> None:
    (folder / "design.py").write_text(_DESIGN.format(name="event-bus"))
    with running(installed, folder, "design:app", "--broker", "embedded") as service:
        service.until(lambda: _is_ready(service))
        service.end(signal.SIGTERM)
    checked = installed.run(
        "topology", "check", "event-bus", "--broker-version", "4.0", "-o", "json"
    )
    found = [(one["rule"], one["place"]) for one in json.loads(checked.stdout)["findings"]]
    said = [(line["rule"], line["place"]) for line in service.said("topology.warning")]
    assert said == found
    assert len(said) > 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("nowhere:app", "--broker", "embedded"), 5),
        (("shop:nothing", "--broker", "embedded"), 5),
        (("shop:app", "--broker", "amqp://127.0.0.1:1/", "--processes", "2", "--queue", "x"), 2),
    ],
    ids=str,
)
def test_start_failure_exits_with_its_code(
    installed: Installed, folder: Path, arguments: tuple[str, ...], code: int
) -> None:
    """There is no traceback. Several processes exit like one."""
    ran = installed.run("run", *arguments, cwd=folder)
    assert ran.returncode == code, ran.stderr
    assert "Error:" in ran.stderr
    assert "Traceback" not in ran.stderr


def _children(parent: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    )
    return [int(one) for one in listed.stdout.split()]


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.broker
def test_killed_process_is_replaced(installed: Installed, folder: Path, amqp_url: str) -> None:
    """Its message is redelivered, and one report is printed."""
    with running(
        installed, folder, "shop:app", "--broker", amqp_url, "--processes", "2"
    ) as service:
        service.until(lambda: len(service.said("consumer.started")) == 2)
        victim, other = _children(service.process.pid)
        os.kill(victim, signal.SIGKILL)
        service.until(lambda: len(service.said("consumer.started")) == 3)
        _publish(amqp_url, *["work"] * 20)
        # Not whole lines: two processes may write into one.
        service.until(lambda: service.out.count("handling") == 20)
        children = _children(service.process.pid)
        assert other in children
        assert service.end(signal.SIGTERM) == 0
    assert not any(map(_exists, children))
    assert service.out.count("Stopped.") == 1
    assert "Stopped. 20 deliveries settled." in service.out


@pytest.mark.broker
def test_children_stop_when_parent_is_killed(
    installed: Installed, folder: Path, amqp_url: str
) -> None:
    """HOPBACK_PROCESSES starts no further processes in them."""
    environment = {"HOPBACK_BROKER": amqp_url, "HOPBACK_PROCESSES": "2"}
    with running(installed, folder, "shop:app", **environment) as service:
        service.until(lambda: len(service.said("consumer.started")) == 2)
        children = _children(service.process.pid)
        assert len(children) == 2
        service.end(signal.SIGKILL)
        service.until(lambda: not any(map(_exists, children)))
    assert len(service.said("shutdown.step", step=5)) == 2


_SLOW = """
import asyncio
from hopback import App

app = App("slow")

@app.handler("orders", retry=["1s"])
async def handle(order: dict) -> None:
    print("handling", flush=True)
    await asyncio.sleep(3 if order["do"] == "work" else 600)
"""


@pytest.mark.broker
@pytest.mark.parametrize(
    ("do", "times", "code", "report"),
    [
        ("work", 1, 0, "Stopped. 1 delivery settled."),
        ("wait", 2, 130, "orders: 1 interrupted; the broker delivers them again."),
    ],
    ids=["first signal", "second signal"],
)
def test_signal_to_all_processes_counts_once(
    installed: Installed,
    folder: Path,
    amqp_url: str,
    do: str,
    times: int,
    code: int,
    report: str,
) -> None:
    """systemd sends SIGTERM to every process of a service, and the parent sends it again."""
    (folder / "slow.py").write_text(_SLOW)
    with running(
        installed, folder, "slow:app", "--broker", amqp_url, "--processes", "2"
    ) as service:
        service.until(lambda: len(service.said("consumer.started")) == 2)
        _publish(amqp_url, do)
        service.until(lambda: "handling" in service.out)
        for _ in range(times):
            for process in (*_children(service.process.pid), service.process.pid):
                os.kill(process, signal.SIGTERM)
            time.sleep(0.5)
        assert service.process.wait(15) == code
    assert report in service.out


@pytest.mark.broker
def test_changed_file_restarts_application(
    installed: Installed, folder: Path, amqp_url: str
) -> None:
    """A file that does not import is waited for until it is repaired."""
    with running(installed, folder, "shop:app", "--broker", amqp_url, "--reload") as service:
        service.until(lambda: len(service.said("consumer.started")) == 1)
        (folder / "shop.py").write_text("1 / 0\n")
        service.until(lambda: "ZeroDivisionError" in service.err)
        (folder / "shop.py").write_text(_SHOP.replace("handling", "changed"))
        service.until(lambda: len(service.said("consumer.started")) == 2)
        _publish(amqp_url, "work")
        service.until(lambda: "changed work" in service.out)
        assert service.end(signal.SIGTERM) == 0


def test_reload_keeps_embedded_broker_and_messages(installed: Installed, folder: Path) -> None:
    options = ("--broker", "embedded", "--reload")
    with running(installed, folder, "shop:app", *options) as service:
        service.until(lambda: len(service.said("consumer.started")) == 1)
        (url,) = re.findall(r"amqp://\S+", service.out)
        service.until(lambda: "hopback publish orders '{}'" in service.out)
        (folder / "shop.py").write_text("1 / 0\n")
        service.until(lambda: "ZeroDivisionError" in service.err)
        _publish(url, "work")
        assert _count_ready(url) == 1
        (folder / "shop.py").write_text(_SHOP.replace("handling", "changed"))
        service.until(lambda: "changed work" in service.out)
        assert service.end(signal.SIGTERM) == 0
