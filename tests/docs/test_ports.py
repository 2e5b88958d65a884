"""The programs of the "From …" pages handle messages that are in the queue already."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hopback.broker.server import ClockKind, ServerSettings
from hopback.integrations.celery_settings import CELERY_RULES
from hopback.testing import BrokerThread
from tests.docs.pages import ROOT, blocks

if TYPE_CHECKING:
    from hopback.broker.embedded.snapshot import StoredMessage

_PIKA = """
import json, os, pika
channel = pika.BlockingConnection(pika.URLParameters(os.environ["HOPBACK_BROKER"])).channel()
channel.queue_declare("orders", durable=True)
for item in ("hat", "unicorn", "scarf"):
    body = json.dumps({"item": item}).encode()
    channel.basic_publish("", "orders", body, pika.BasicProperties(content_type="application/json"))
channel.close()
"""
_CELERY = """
from before import pack
for item in ("hat", "unicorn", "scarf"):
    pack.delay(item)
"""
_DRAMATIQ = _CELERY.replace("delay", "send")
_KEPT: dict[str, list[str]] = {
    "from-pika": ["after.py"],
    "from-aio-pika": ["after.py"],
    "from-faststream": ["-c", "import asyncio, after; asyncio.run(after.app.run())"],
    "from-celery": ["-m", "celery", "-A", "after", "worker", "-P", "solo", "-l", "WARNING"],
}
_PRODUCERS = {"from-celery": _CELERY, "from-dramatiq": _DRAMATIQ}
_ADOPT = "hopback adopt orders as-it-is --retry 10s --retry 1m > orders.toml"
_TIMEOUT_S = 60.0

pytestmark = pytest.mark.socket


def _page(name: str) -> str:
    return (ROOT / "docs" / "how-to" / f"{name}.md").read_text(encoding="utf-8")


def _parked(broker: BrokerThread, queue: str) -> tuple[StoredMessage, ...]:
    return next((one.messages for one in broker.snapshot().queues if one.name == queue), ())


def _run_port(name: str, program: list[str], folder: Path, *, adopts: bool = False) -> None:
    """Two orders are packed and the third is parked. All were published before the plan existed."""
    text, dead = _page(name), "orders.XQ" if name == "from-dramatiq" else "orders.dlq"
    for block in blocks(text):
        if block.title is not None:
            (folder / block.title).write_text(block.text, encoding="utf-8")
    settings = ServerSettings(port=0, http_port=0, clock=ClockKind.AUTO)
    with BrokerThread(settings) as broker:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOPBACK_BROKER": broker.url,
            "HOPBACK_MANAGEMENT": broker.http_url,
        }
        producer = [sys.executable, "-c", _PRODUCERS.get(name, _PIKA)]
        subprocess.run(producer, cwd=folder, env=environment, check=True, timeout=_TIMEOUT_S)
        if adopts:
            assert _ADOPT in text
            subprocess.run(_ADOPT, shell=True, cwd=folder, env=environment, check=True, timeout=60)
        log = folder / "program.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, *program], cwd=folder, env=environment, stdout=out, stderr=out
            )
        try:
            deadline = time.monotonic() + _TIMEOUT_S
            # The clock of an idle broker advances. Messages parked for a week expire soon.
            parked = _parked(broker, dead)
            while not parked or log.read_text().count("packed ") < 2:
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                assert process.poll() is None, log.read_text()[-3000:]
                time.sleep(0.05)
                parked = parked or _parked(broker, dead)
        finally:
            process.kill()
            process.wait()
        assert {item for item in ("hat", "scarf") if f"packed {item}" in log.read_text()} == {
            "hat",
            "scarf",
        }
        record = json.loads(str(parked[0].properties.headers["hopback-failure"]))
        assert (record["type"], record["message"]) == ("LookupError", "no such item: unicorn")


@pytest.mark.parametrize("name", sorted(_KEPT))
def test_consumer_of_the_page_applies_a_plan_to_existing_messages(
    name: str, tmp_path: Path
) -> None:
    _run_port(name, _KEPT[name], tmp_path)


@pytest.mark.parametrize("name", [*sorted(_KEPT), "from-dramatiq"])
def test_hopback_handler_takes_existing_messages_of_an_adopted_queue(
    name: str, tmp_path: Path
) -> None:
    """The queue is adopted without changes."""
    command = re.search(r"^hopback run shop:app.*$", _page(name), re.MULTILINE)
    assert command is not None
    _run_port(name, ["-m", *command.group().split()], tmp_path, adopts=True)


def test_celery_page_lists_every_rule_of_the_check() -> None:
    """The texts come from the table of the check."""
    listed = [f"| `{name}` | {text} |" for name, text in CELERY_RULES.items()]
    assert "\n".join(listed) in _page("from-celery")
