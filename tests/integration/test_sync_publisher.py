"""The synchronous publisher as Django, Flask and scripts have it: on a socket, from many threads."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pika  # type: ignore[import-untyped]
import pytest

from hopback import SyncPublisher, compose
from hopback.errors import ConnectionFailed, InvalidDeclaration, Returned

if TYPE_CHECKING:
    from pathlib import Path

    from hopback.testing import BrokerThread

pytestmark = pytest.mark.socket


@pytest.fixture
def queue(hopback_broker: BrokerThread) -> str:
    """A separate queue."""
    connection = pika.BlockingConnection(pika.URLParameters(hopback_broker.url))
    connection.channel().queue_declare("orders", durable=True)
    connection.close()
    return "orders"


def _bodies(broker: BrokerThread) -> list[str]:
    return sorted(one.body.decode() for one in broker.snapshot().queue("orders").ready)


@pytest.mark.parametrize("connections", [1, 3])
def test_sync_publisher_is_thread_safe(
    hopback_broker: BrokerThread, queue: str, connections: int
) -> None:
    """Every call returns after its confirm."""
    with (
        SyncPublisher(hopback_broker.url, connections=connections) as publisher,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda n: publisher.publish(queue, n, priority=1), range(200)))
        assert len(_bodies(hopback_broker)) == 200
    assert _bodies(hopback_broker) == sorted(str(number) for number in range(200))


def test_publish_many_reports_every_failure(hopback_broker: BrokerThread, queue: str) -> None:
    messages = [compose(queue, number) for number in range(1000)]
    with SyncPublisher(hopback_broker.url) as publisher:
        assert publisher.send_all(messages) == 1000
        wrong = [compose("nowhere", 1), compose(queue, 2), compose("nowhere", 3)]
        with pytest.raises(ExceptionGroup, match="2 of 3 messages were not published") as caught:
            publisher.send_all(wrong)
        assert [type(one) for one in caught.value.exceptions] == [Returned, Returned]
        with pytest.raises(Returned):
            publisher.publish("nowhere", {})
        publisher.publish("nowhere", {}, mandatory=False)
        with pytest.raises(ValueError, match=r"app.delays\(\)"):
            publisher.publish(queue, {}, delay="2h")
        with pytest.raises(ValueError, match=r"app.delays\(\)"):
            publisher.send_all([compose(queue, {}, delay="2h")])
    assert len(_bodies(hopback_broker)) == 1001


def test_closed_sync_publisher_refuses_publish(hopback_broker: BrokerThread, queue: str) -> None:
    """It can be closed twice and leaves no thread."""
    publisher = SyncPublisher(hopback_broker.url)
    publisher.close()
    with pytest.raises(ConnectionFailed, match="the publisher is closed"):
        publisher.publish(queue, {})
    with SyncPublisher(hopback_broker.url, name="a separate thread") as publisher:
        publisher.publish(queue, {})
    publisher.close()
    assert "a separate thread" not in [one.name for one in threading.enumerate()]


async def test_sync_publisher_on_event_loop_names_publisher(hopback_broker: BrokerThread) -> None:
    assert asyncio.current_task() is not None
    with pytest.raises(RuntimeError, match=r"use `Publisher`"):
        SyncPublisher(hopback_broker.url).publish("orders", {})


def test_sync_publisher_requires_at_least_one_connection() -> None:
    with pytest.raises(InvalidDeclaration, match="connections: expected at least 1, got 0"):
        SyncPublisher("amqp://localhost", connections=0)


def _in_child(publisher: SyncPublisher, results: Any) -> None:
    try:
        publisher.publish("orders", "child")
        publisher.close()
        results.put("published")
    except BaseException as error:
        results.put(repr(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_process_opens_its_own_connections(hopback_broker: BrokerThread, queue: str) -> None:
    """Servers that fork after loading the program may share the publisher."""
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    with SyncPublisher(hopback_broker.url) as publisher:
        publisher.publish(queue, "parent")
        child = fork.Process(target=_in_child, args=(publisher, results))
        child.start()
        assert results.get() == "published"
        child.join()
        publisher.publish(queue, "parent again")
    assert _bodies(hopback_broker) == ["child", "parent", "parent again"]


_SCRIPT = """
import sys
from hopback import SyncPublisher
publisher = SyncPublisher(sys.argv[1])
publisher.publish("orders", "from a script")
print("end")
"""


def test_script_without_close_exits_cleanly(
    hopback_broker: BrokerThread, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT)
    command = [sys.executable, "-W", "error", "script.py", hopback_broker.url]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "end\n", "")
    assert _bodies(hopback_broker) == ["from a script"]
