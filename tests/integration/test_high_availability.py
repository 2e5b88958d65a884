"""Two services on one PostgreSQL store: a job outlives its service, and the store's own fall."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.message import Message, Properties
from hopback.topology.model import Queue, QueueType
from tests.harness.postgres import PostgresNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# One PostgreSQL.
pytestmark = [
    pytest.mark.broker,
    pytest.mark.waits(30),
    pytest.mark.xdist_group("high-availability"),
]

_DLQ, _MAIN, _COUNT, _IN_FLIGHT = "orders.dlq", "orders", 600, 20
_RATE = 200.0  # messages a second: the job takes some seconds, in which things go wrong
_PATIENCE_S = 60.0
_SETTINGS = "[jobs]\nlease_seconds = 2\ntake_over = true\n"


@pytest.fixture(scope="module")
def store() -> Iterator[PostgresNode]:
    """A PostgreSQL of this file alone: it is killed."""
    node = PostgresNode().start()
    yield node
    node.remove()


class _Service:
    """`hopback serve` in a separate process."""

    def __init__(self, folder: Path, name: str, broker: str, store: str) -> None:
        config = folder / "hopback.toml"
        config.write_text(_SETTINGS)
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hopback", "serve", "--http", "0", "--amqp-only"),
                    *("--broker", broker, "--dlq", f"{_DLQ}={_MAIN}", "--store", store),
                    *("--config", str(config)),
                ],
                stdout=log,
                stderr=log,
            )

    def client(self) -> httpx.Client:
        """A client, once it serves."""
        until = time.monotonic() + _PATIENCE_S
        while (found := re.search(r"Serving (\S+)", self._log.read_text())) is None:
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.05)
        return httpx.Client(base_url=found[1], timeout=_PATIENCE_S)


@contextmanager
def _two(folder: Path, broker: str, store: str) -> Iterator[list[_Service]]:
    services = [_Service(folder, name, broker, store) for name in ("a", "b")]
    try:
        yield services
    finally:
        for service in services:
            service.process.kill()
            service.process.wait()


def _begin(client: httpx.Client) -> str:
    pace = {"rate": _RATE, "inFlight": _IN_FLIGHT}
    asked = {"kind": "re-drive", "queue": _DLQ, "reason": "repaired", "pace": pace}
    answer = client.post("/admin/dlq/jobs", json=asked)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def _until(client: httpx.Client, job: str, done: int, *states: str) -> dict[str, Any]:
    """Return the job when it has this progress or one of these states.

    The store may be away meanwhile.
    """
    until, found = time.monotonic() + _PATIENCE_S, {}
    while time.monotonic() < until:
        answer = client.get(f"/admin/dlq/jobs/{job}")
        found = answer.json()
        if answer.status_code == 200:
            if found["state"] in states or (not states and found["counts"]["done"] >= done):
                return dict(found)
        else:
            assert (answer.status_code, found["code"]) == (503, "database-unavailable")
        time.sleep(0.1)
    raise AssertionError(f"not in time: {found}")


async def _fill(url: str) -> None:
    connection = await RabbitMQ(url).connect("fill")
    channel = await connection.open_channel()
    for name in (_MAIN, _DLQ):
        await channel.declare_queue(Queue(name, type=QueueType.CLASSIC))
    sent = [
        channel.publish(Message("", _DLQ, b"%d" % number, Properties(delivery_mode=2)))
        for number in range(_COUNT)
    ]
    await asyncio.gather(*sent)
    await connection.close()


async def _count_arrivals(url: str) -> Counter[int]:
    """How often each message is in the queue it came from."""
    connection = await RabbitMQ(url).connect("count")
    channel = await connection.open_channel()
    ready = (await channel.declare_queue(Queue(_MAIN), passive=True)).messages
    found: asyncio.Queue[int] = asyncio.Queue()
    await channel.consume(_MAIN, lambda delivery: found.put_nowait(int(delivery.body)))
    counted = Counter([await found.get() for _ in range(ready)])
    left = (await channel.declare_queue(Queue(_DLQ), passive=True)).messages
    await connection.close()
    assert left == 0
    return counted


def test_job_is_taken_over_when_its_service_is_killed(
    store: PostgresNode, amqp_url: str, tmp_path: Path
) -> None:
    """No message is lost."""
    asyncio.run(_fill(amqp_url))
    with (
        _two(tmp_path, amqp_url, store.url()) as (first, second),
        first.client() as here,
        second.client() as there,
    ):
        job = _begin(here)
        before = _until(there, job, 100)
        first.process.kill()
        first.process.wait()
        done = _until(there, job, 0, "completed", "failed", "cancelled")
        audit = there.get("/admin/audit", params={"job": job}).json()["items"]
    assert before["state"] == "running"
    assert (done["state"], done["counts"]["remaining"], done["run"]) == ("completed", 0, 2)
    assert "job.take-over" in {entry["action"] for entry in audit}
    arrived = asyncio.run(_count_arrivals(amqp_url))
    assert set(arrived) == set(range(_COUNT))
    # Only messages in flight at the kill may be duplicated.
    assert arrived.total() - _COUNT <= 3 * _IN_FLIGHT


def test_killed_and_restarted_store_loses_no_job(
    store: PostgresNode, amqp_url: str, tmp_path: Path
) -> None:
    """Both services report it and stay up. Then one of them completes the job."""
    asyncio.run(_fill(amqp_url))
    with (
        _two(tmp_path, amqp_url, store.url()) as (first, second),
        first.client() as here,
        second.client() as there,
    ):
        job = _begin(here)
        _until(there, job, 100)
        store.stop("immediate")
        away = [client.get("/admin/dlq/jobs/j-none").status_code for client in (here, there)]
        alive = [client.get("/healthz").status_code for client in (here, there)]
        time.sleep(3)  # longer than the lease: the job has lost it when the store is back
        store.start()
        done = _until(there, job, 0, "completed", "failed", "cancelled")
        assert [each.process.poll() for each in (first, second)] == [None, None]
    assert (away, alive) == ([503, 503], [200, 200])
    assert (done["state"], done["counts"]["remaining"]) == ("completed", 0)
    arrived = asyncio.run(_count_arrivals(amqp_url))
    assert set(arrived) == set(range(_COUNT))
    assert arrived.total() - _COUNT <= 3 * _IN_FLIGHT
