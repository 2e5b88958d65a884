"""`hopback broker` as its users have it: a process, with the other commands beside it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pika  # type: ignore[import-untyped]

from tests.acceptance.running import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.conftest import Installed


class _Broker:
    """A running broker, as it introduces itself."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        told = [process.stdout.readline().split() for _ in range(5)]
        self.url, self.management = told[1][-1], told[2][-1]

    @property
    def options(self) -> list[str]:
        """How other commands find it."""
        return ["--broker", self.url, "--management", self.management]


@contextmanager
def _broker(installed: Installed, *arguments: str) -> Iterator[_Broker]:
    process = subprocess.Popen(
        [str(installed.command), "broker", "--port", "0", "--http", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
    )
    try:
        yield _Broker(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_topology_commands_work_on_broker_server(installed: Installed, tmp_path: Path) -> None:
    """apply, plan, doctor and dlq work as on RabbitMQ."""
    with _broker(installed) as broker:
        applied = installed.run("topology", "apply", "event-bus", "--yes", *broker.options)
        assert applied.returncode == 0, applied.stderr
        plan = installed.run("topology", "plan", "event-bus", "-o", "json", *broker.options)
        assert plan.returncode == 0, plan.stderr
        assert json.loads(plan.stdout)["create"] == []
        judged = installed.run("doctor", *broker.options)
        assert "RabbitMQ 4.0" in judged.stdout + judged.stderr
        home = str(tmp_path)
        listing = ("dlq", "ls", "-o", "json", *broker.options)
        listed = installed.run(*listing, HOME=home, XDG_STATE_HOME=home)
        assert listed.returncode == 0, listed.stderr
        assert "dlq" in listed.stdout


def test_broker_command_loads_definitions_advances_clock_and_stops_on_ctrl_c(
    installed: Installed, tmp_path: Path
) -> None:
    definitions = tmp_path / "definitions.json"
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
    waits = {"name": "waits", "arguments": {"x-message-ttl": 1_800_000, **back}}
    definitions.write_text(json.dumps({"queues": [{"name": "work", "arguments": {}}, waits]}))
    options = ("--clock", "virtual", "--definitions", str(definitions), "--user", "ann:pw")
    with _broker(installed, *options) as broker:
        url = broker.url.replace("amqp://", "amqp://ann:pw@")
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "waits", b"an order")
        _advance(broker.management, 1800)
        assert channel.basic_get("work", auto_ack=True)[2] == b"an order"
        connection.close()
        broker.process.send_signal(signal.SIGINT)
        out, err = broker.process.communicate(timeout=20)
    assert (broker.process.returncode, out, err) == (0, "Stopped.\n", "")


def _advance(management: str, seconds: int) -> None:
    passwords = urllib.request.HTTPPasswordMgrWithPriorAuth()
    passwords.add_password(None, management, "ann", "pw", is_authenticated=True)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
    body = json.dumps({"seconds": seconds}).encode()
    opener.open(f"{management}/clock/advance", body, timeout=20).close()


_SHOP = """
import os
from hopback import App

app = App("shop")

@app.handler("orders", retry=["30s"])
async def handle(order: dict, context) -> None:
    if context.attempt == 1:
        raise LookupError("not yet")
    with open("handled", "a") as file:
        file.write(f"{os.getpid()} {order['id']}\\n")
"""


def test_several_processes_share_broker_server(installed: Installed, tmp_path: Path) -> None:
    """A service of two processes fails, retries and handles messages of another client library."""
    (tmp_path / "shop.py").write_text(_SHOP)
    handled = tmp_path / "handled"
    handled.touch()
    with (
        _broker(installed, "--clock", "auto") as broker,
        running(installed, tmp_path, "shop:app", "--broker", broker.url, "--processes=2") as shop,
    ):
        shop.until(lambda: len(shop.said("consumer.started")) == 2)
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        for number in range(20):
            channel.basic_publish("", "orders", json.dumps({"id": number}).encode())
        connection.close()
        shop.until(lambda: len(handled.read_text().splitlines()) == 20)
        assert shop.end(signal.SIGTERM) == 0
    lines = [line.split() for line in handled.read_text().splitlines()]
    assert sorted(int(number) for _, number in lines) == list(range(20))
    assert len({process for process, _ in lines}) == 2


def test_occupied_broker_port_is_reported_with_remedy(installed: Installed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = installed.run("broker", "--port", port, "--no-http")
    assert ran.returncode == 7
    assert "--port" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_invalid_broker_options_are_refused_without_password(
    installed: Installed, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text('{"queues": [{"name": 5}]}')
    for arguments, words in (
        (("--user", "s3cret"), "NAME:PASSWORD"),
        (("--profile", "new"), "expected a broker version"),
        (("--definitions", str(tmp_path / "bad.json")), "queues"),
    ):
        ran = installed.run("broker", "--port", "0", "--no-http", *arguments)
        assert ran.returncode in (1, 2)
        assert words in ran.stderr
        assert "s3cret" not in ran.stderr
