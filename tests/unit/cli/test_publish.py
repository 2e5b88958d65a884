"""`hopback publish`: confirmed and mandatory, from the command line or from stdin."""

from __future__ import annotations

import io
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from hopback.broker.server import Permission, ServerSettings
from hopback.cli.app import run
from hopback.testing.threads import BrokerThread
from hopback.topology.definitions import write_definitions
from hopback.topology.delays import delay_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hopback.broker.embedded import StoredMessage
    from hopback.fields import FieldValue

_DEFINITIONS = {
    "queues": [{"name": "orders", "vhost": "/", "durable": True, "arguments": {}}],
    "exchanges": [{"name": "events", "vhost": "/", "type": "topic", "durable": True}],
    "bindings": [
        {
            "source": "events",
            "vhost": "/",
            "destination": "orders",
            "destination_type": "queue",
            "routing_key": "order.*",
            "arguments": {},
        }
    ],
}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerThread]:
    """A broker with one queue, that the environment names."""
    with BrokerThread(ServerSettings(port=0, http_port=0)) as found:
        found.server.load(_DEFINITIONS)
        monkeypatch.setenv("HOPBACK_BROKER", found.url)
        yield found


def _stored(broker: BrokerThread) -> list[StoredMessage]:
    return list(broker.snapshot().queue("orders").messages)


def test_publish_sends_persistent_message_and_waits_for_confirm(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["publish", "orders", '{"id": 7}', "--type", "Order", "--header", "a=b"]) == 0
    (message,) = _stored(broker)
    headers: dict[str, FieldValue] = dict(message.properties.headers)
    assert json.loads(message.body) == {"id": 7}
    assert (message.properties.type, headers["a"]) == ("Order", "b")
    assert message.properties.delivery_mode == 2
    assert message.properties.message_id
    assert capsys.readouterr().out == "1 message confirmed for orders.\n"


def test_publish_to_exchange_takes_routing_key(broker: BrokerThread) -> None:
    """`--raw` sends the text unchanged."""
    assert run(["publish", "events", "order.new", "plain text", "--raw"]) == 0
    assert [message.body for message in _stored(broker)] == [b"plain text"]


def test_publish_reads_lines_of_stdin(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is confirmed before the next is read. Empty lines are skipped."""
    _set_stdin(monkeypatch, b'{"id": 1}\n\n{"id": 2}\n')
    assert run(["publish", "orders", "-"]) == 0
    assert [json.loads(message.body)["id"] for message in _stored(broker)] == [1, 2]
    assert capsys.readouterr().out == "2 messages confirmed for orders.\n"


def _set_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))


def test_raw_bytes_are_published_unchanged(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_stdin(monkeypatch, b"caf\xe9\r\na\rb\n\xff\n")
    assert run(["publish", "orders", "-", "--raw"]) == 0
    assert run(["publish", "orders", os.fsdecode(b"th\xe9"), "--raw"]) == 0
    bodies = [message.body for message in _stored(broker)]
    assert bodies == [b"caf\xe9", b"a\rb", b"\xff", b"th\xe9"]


def test_json_that_is_not_utf8_is_usage_error(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = b'{"name": "caf\xe9"}'
    _set_stdin(monkeypatch, b"{}\n" + line + b"\n")
    assert run(["publish", "orders", "-"]) == 2
    told = capsys.readouterr()
    assert told.out == "1 message confirmed for orders.\n"
    assert "expected JSON as message 2" in told.err
    assert "can't decode byte 0xe9" in told.err
    assert run(["publish", "orders", os.fsdecode(line)]) == 2
    assert "can't decode byte 0xe9" in capsys.readouterr().err
    assert [message.body for message in _stored(broker)] == [b"{}"]


def test_unroutable_publish_names_exchange_and_key(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["publish", "events", "cart.new", "{}"]) == 1
    told = capsys.readouterr()
    assert (
        "no queue is bound to exchange 'events' for routing key 'cart.new' (312 NO_ROUTE)"
        in told.err
    )
    assert "Check the name. `hopback run` declares the queues" in told.err
    assert told.out == ""


def test_publish_without_permission_exits_with_4(capsys: pytest.CaptureFixture[str]) -> None:
    reader = Permission(configure="", write="", read=".*")
    settings = ServerSettings(port=0, http_port=None, permissions={("guest", "/"): reader})
    with BrokerThread(settings) as found:
        found.server.load(_DEFINITIONS)
        assert run(["publish", "orders", "{}", "--broker", found.url]) == 4
    assert "ACCESS_REFUSED" in capsys.readouterr().err


def test_publish_over_lost_connection_exits_with_7(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker closes the connection between two lines of an endless input."""
    stop = threading.Thread(target=broker.disconnect)

    def readline(_limit: int) -> bytes:
        if _stored(broker) and stop.ident is None:
            stop.start()
        return b"{}\n"

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(readline=readline)))
    try:
        assert run(["publish", "orders", "-"]) == 7
    finally:
        stop.join()
    told = capsys.readouterr()
    assert "CONNECTION_FORCED" in told.err
    assert " confirmed for orders." in told.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["orders", "{id: 7}"], "expected JSON as message 1, got '{id: 7}'"),
        (["orders", "a", "b", "{}"], "is the JSON in quotes?"),
        (["orders"], "expected QUEUE JSON or EXCHANGE KEY JSON, got only 'orders'"),
        (
            ["orders", "[NaN]"],
            "message 1: expected a payload that JSON can express, got nan at $[0]",
        ),
        (["orders", "1e999"], "message 1: expected a payload that JSON can express, got inf at $"),
        (["orders", "{}", "--header", "a"], "expected NAME=TEXT, got 'a'"),
        (["orders", "{}", "--delay", "4"], "add a unit, as in 4s"),
        (["orders", "{}", "--broker", "amqp://a..b/"], "got no valid host"),
    ],
)
def test_invalid_publish_is_usage_error_and_sends_nothing(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert run(["publish", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert _stored(broker) == []


def test_delay_and_priority_are_sent_with_the_message(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["publish", "orders", '{"id": 7}', "--priority", "5"]
    assert run([*command, "--delay", "5m"]) == 1
    assert "declares app.delays(longest='5m')" in capsys.readouterr().err
    broker.server.load(write_definitions(delay_topology("1h"), vhost="/")[0])
    assert run(command) == 0
    assert run([*command, "--delay", "5m"]) == 0
    assert [message.properties.priority for message in _stored(broker)] == [5]
    (waiting,) = broker.snapshot().queue("hopback.delay.level-08").messages
    assert waiting.properties.priority == 5
    assert run([*command[:1], "nowhere", *command[2:], "--delay", "5m"]) == 1
    assert "'nowhere'" in capsys.readouterr().err


_APP = """
from hopback import App
app = App("shop")

@app.handler("orders", retry=["1s"])
async def handle(order: dict) -> None:
    print("handled", order["id"], flush=True)
"""


def test_publish_finds_embedded_broker_of_its_directory_if_port_5672_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.py").write_text(_APP)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.delenv("HOPBACK_BROKER", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "hopback", "run", "shop:app", "--broker", "embedded"]
    with _foreign_broker() as was_contacted:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            try:
                assert running.stdout is not None
                assert running.stderr is not None
                first, second = running.stdout.readline(), running.stdout.readline()
                (url,) = re.findall("amqp://guest:guest@127.0.0.1:[0-9]+/", first)
                assert second.endswith(": hopback publish orders '{}'\n")
                while "consumer.started" not in running.stderr.readline():
                    pass
                assert run(["publish", "orders", '{"id": 7}', "--broker", url]) == 0
                assert running.stdout.readline() == "handled 7\n"
                assert run(["publish", "orders", '{"id": 8}']) == 0
                assert running.stdout.readline() == "handled 8\n"
                monkeypatch.chdir("elsewhere")
                assert run(["publish", "orders", '{"id": 9}']) == 7
                monkeypatch.chdir(tmp_path)
            finally:
                running.terminate()
                told, _ = running.communicate()
        assert told == "Stopped. 2 deliveries settled.\n"
        assert running.returncode == 0
        capsys.readouterr()
        assert run(["publish", "orders", '{"id": 9}']) == 7
        assert f"is not running in {tmp_path}" in capsys.readouterr().err
        assert not was_contacted()


@contextmanager
def _foreign_broker() -> Iterator[Callable[[], bool]]:
    """Occupy the default port of RabbitMQ. Yield a check for connections to it."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", 5672))
        except OSError:  # another program occupies it
            yield lambda: False
            return
        listener.listen()
        yield lambda: bool(select.select([listener], [], [], 0)[0])
