"""`hopback serve` stays awake whatever messages, filters and policies hold. Real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.message import Message, Properties
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hopback.fields import FieldValue

pytestmark = pytest.mark.xdist_group("serve-hostile")  # the hostile messages are published once

_PATIENCE_S = 300.0
_LONGEST_S = 5.0
"""Limit of a health check on a busy machine. Without limits on messages it took 20 s or more."""
_DLQ = "orders.dlq"
_BODIES, _LARGE = 30, 340_000
_HEADERS = 150


@contextmanager
def _start_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "hopback", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _told(process: subprocess.Popen[str], beginning: str) -> str:
    """The address at the end of the first line that holds these words."""
    assert process.stdout is not None
    for line in process.stdout:
        if beginning in line:
            return line.split()[-1].rstrip("/")
    raise AssertionError(f"no line of the output matches {beginning!r}")


class _Health:
    """Asks for health again and again, and knows how long each answer took."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.answers: list[float] = []
        self.meanwhile = 0
        """How many answers there were when the work was done."""

    def _ask(self) -> None:
        with httpx.Client(timeout=_PATIENCE_S) as client:
            while not self._over.is_set():
                began = time.monotonic()
                assert client.get(f"{self._base}/healthz").status_code == 200
                self.answers.append(time.monotonic() - began)
                self._over.wait(0.02)

    def __enter__(self) -> _Health:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.meanwhile = len(self.answers)
        self._over.set()
        self._thread.join()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The admin service over a broker with a hostile policy, a hostile name and a few queues."""
    folder: Path = tmp_path_factory.mktemp("serve")
    with _start_process("broker", "--port", "0", "--http", "0") as broker:
        url = _told(broker, "AMQP")
        management = _told(broker, "anagement")
        with httpx.Client(base_url=management, auth=("guest", "guest")) as api:
            policy = {"pattern": "^(a+)+$", "definition": {"max-length": 9}, "apply-to": "queues"}
            assert api.put("/api/policies/%2F/slow", json=policy).is_success
        asyncio.run(_prepare(url))
        with _start_process(
            "serve", "--store", f"sqlite:///{folder}/jobs.db", "--http", "0", "--broker", url,
            "--management", management, "--dlq", "bodies.dlq=bodies", "--dlq", f"{_DLQ}=orders",
        ) as process:  # fmt: skip
            base = _told(process, "Serving")
            with httpx.Client(base_url=base, timeout=_PATIENCE_S) as client:
                yield client


async def _prepare(url: str) -> None:
    connection = await RabbitMQ(url).connect("producer")
    channel = await connection.open_channel()
    for name in ("a" * 42 + "!", "orders", _DLQ, "bodies", "bodies.dlq"):
        await channel.declare_queue(Queue(name))
    headers: dict[str, FieldValue] = {f"{n:x}": None for n in range(20_000)}
    body = b'{"a": [' + b"[]," * _LARGE + b"1]}"
    for _ in range(_HEADERS):
        await channel.publish(Message("", _DLQ, b"", Properties(headers=headers)))
    for _ in range(_BODIES):
        await channel.publish(Message("", "bodies.dlq", body))
    await connection.close()


def _held(client: httpx.Client, queue: str) -> str:
    answer = client.post(f"/admin/dlq/queues/{queue}/sessions", json={"limit": 200})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def _assert_awake(health: _Health, least: int) -> None:
    """Responses arrived during the work, and none waited for its end."""
    assert health.meanwhile >= least
    assert max(health.answers, default=0.0) < _LONGEST_S


def test_filter_over_large_bodies_does_not_block_service(served: httpx.Client) -> None:
    """The bodies have 30 MB of JSON, and the filter has 32 payload terms."""
    terms = " ".join([f"payload.a.{_LARGE}:1"] * 32)
    with _Health(str(served.base_url)) as health:
        session = _held(served, "bodies.dlq")
        found = served.get(f"/admin/dlq/sessions/{session}/messages", params={"filter": terms})
    assert (found.status_code, found.json()["matching"]) == (200, _BODIES)
    _assert_awake(health, 10)


def test_messages_with_20000_headers_do_not_block_service(served: httpx.Client) -> None:
    with _Health(str(served.base_url)) as health:
        session = _held(served, _DLQ)
        assert served.get(f"/sessions/{session}").status_code == 200
        first = served.get(f"/admin/dlq/sessions/{session}/messages").json()["items"][0]["id"]
        page = served.get(f"/sessions/{session}/messages/{first}")
        assert (page.status_code, "19,500 more in an export" in page.text) == (200, True)
    _assert_awake(health, 10)


def test_hostile_policy_pattern_does_not_block_service(served: httpx.Client) -> None:
    with _Health(str(served.base_url)) as health:
        for path in ("/topology", "/checks", "/"):
            assert served.get(path).status_code == 200
    _assert_awake(health, 0)
