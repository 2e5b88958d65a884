"""`hopback publish`: confirmed and mandatory, from the command line or from stdin."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hopback.broker.server import ServerSettings
from hopback.cli.app import run
from hopback.testing.threads import BrokerThread

if TYPE_CHECKING:
    from collections.abc import Iterator
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


def test_a_message_is_published_to_a_queue(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    """Persistent, with an id of its own; the command ends when the broker has confirmed it."""
    assert run(["publish", "orders", '{"id": 7}', "--type", "Order", "--header", "a=b"]) == 0
    (message,) = _stored(broker)
    headers: dict[str, FieldValue] = dict(message.properties.headers)
    assert json.loads(message.body) == {"id": 7}
    assert (message.properties.type, headers["a"]) == ("Order", "b")
    assert message.properties.delivery_mode == 2
    assert message.properties.message_id
    assert capsys.readouterr().out == "1 message confirmed for orders.\n"


def test_an_exchange_takes_a_routing_key(broker: BrokerThread) -> None:
    """Three arguments instead of two; --raw sends the text as it is."""
    assert run(["publish", "events", "order.new", "plain text", "--raw"]) == 0
    assert [message.body for message in _stored(broker)] == [b"plain text"]


def test_lines_of_stdin_are_messages(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is confirmed before the next is read; empty lines are none."""
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"id": 1}\n\n{"id": 2}\n'))
    assert run(["publish", "orders", "-"]) == 0
    assert [json.loads(message.body)["id"] for message in _stored(broker)] == [1, 2]
    assert capsys.readouterr().out == "2 messages confirmed for orders.\n"


def test_what_no_queue_wants_is_an_error(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says where it did not arrive, and what to do."""
    assert run(["publish", "events", "cart.new", "{}"]) == 1
    told = capsys.readouterr()
    assert "returned by exchange 'events', routing key 'cart.new': 312 NO_ROUTE" in told.err
    assert told.out == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["orders", "{id: 7}"], "expected JSON as message 1, got '{id: 7}'"),
        (["orders", "a", "b", "{}"], "is the JSON in quotes?"),
        (["orders", "{}", "--header", "a"], "expected NAME=TEXT, got 'a'"),
    ],
)
def test_what_cannot_be_published_is_a_usage_error(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """Nothing was sent."""
    assert run(["publish", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert _stored(broker) == []


_APP = """
from hopback import App
app = App("shop")

@app.handler("orders", retry=["1s"])
async def handle(order: dict) -> None:
    print("handled", order["id"], flush=True)
"""


def test_the_embedded_broker_of_a_run_can_be_reached(tmp_path: Path) -> None:
    """It says where, with the command that publishes; what is published there is handled."""
    (tmp_path / "shop.py").write_text(_APP)
    command = [sys.executable, "-m", "hopback", "run", "shop:app", "--broker", "embedded"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stderr is not None
            first, second = running.stdout.readline(), running.stdout.readline()
            (url,) = re.findall("amqp://guest:guest@127.0.0.1:[0-9]+/", first)
            assert "hopback publish orders '{}'" in second
            while "consumer.started" not in running.stderr.readline():
                pass
            assert run(["publish", "orders", '{"id": 7}', "--broker", url]) == 0
            assert running.stdout.readline() == "handled 7\n"
        finally:
            running.terminate()
            told, _ = running.communicate()
    assert told == "Stopped. 1 deliveries settled.\n"
    assert running.returncode == 0
