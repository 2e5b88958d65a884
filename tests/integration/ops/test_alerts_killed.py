"""Two services on one store. The one that sends a notice is killed while it sends."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import TYPE_CHECKING

import httpx
import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import ServerSettings
from hopback.message import Message
from hopback.testing import BrokerThread
from hopback.topology.model import Queue
from tests.integration.database import database_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["database_url"]

pytestmark = pytest.mark.socket

_PATIENCE_S = 60.0
_SETTINGS = """
[alerts]
every_seconds = 1
wait_seconds = 0

[[alerts.targets]]
name = "ops"
kind = "webhook"
url = "{url}"
timeout_seconds = 2

[[alerts.rules]]
name = "a message is dead"
kind = "depth"
"""


class _Hook:
    """A webhook that responds only on request and records the sender and the id of each notice.

    Each service has a separate path in its settings.
    """

    def __init__(self) -> None:
        self.posts: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self.answers = threading.Event()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.posts.put((self.path.removeprefix("/"), json.loads(body)["id"]))
                hook.answers.wait(_PATIENCE_S)
                with suppress(OSError):  # the asking service may be dead
                    self.send_response(204)
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                """Do not log."""

        return Handler


@contextmanager
def _hook() -> Iterator[tuple[_Hook, str]]:
    hook = _Hook()
    server = ThreadingHTTPServer(("127.0.0.1", 0), hook.handler())
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hook, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        hook.answers.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Service:
    """`hopback serve` in a separate process."""

    def __init__(self, folder: Path, name: str, broker: BrokerThread, store: str, url: str) -> None:
        config = folder / f"{name}.toml"
        config.write_text(_SETTINGS.format(url=f"{url}/{name}"))
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hopback", "serve", "--http", "0"),
                    *("--broker", broker.url, "--management", broker.http_url),
                    *("--dlq", "orders.dlq=orders", "--store", store, "--config", str(config)),
                ],
                stdout=log,
                stderr=log,
            )

    def url(self) -> str:
        """Where it serves, once it does."""
        until = time.monotonic() + _PATIENCE_S
        while (found := re.search(r"Serving (\S+)", self._log.read_text())) is None:
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.05)
        return found[1]

    def kill(self) -> None:
        """kill -9. Safe to repeat."""
        self.process.kill()
        self.process.wait()


async def _fail_one(url: str) -> None:
    """Put a message into the dead-letter queue."""
    connection = await RabbitMQ(url).connect("fail")
    channel = await connection.open_channel()
    for name in ("orders", "orders.dlq"):
        await channel.declare_queue(Queue(name))
    await channel.publish(Message("", "orders.dlq", b"dead"))
    await connection.close()


def _all_told(service: _Service) -> None:
    """Wait until no notice is pending and the last one was accepted."""
    until = time.monotonic() + _PATIENCE_S
    with httpx.Client(base_url=service.url(), timeout=_PATIENCE_S) as client:
        while True:
            (target,) = client.get("/admin/alerts").json()["targets"]
            if target["waiting"] == 0 and target["sentAt"] is not None:
                return
            assert time.monotonic() < until, target
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("database_url", "side_by_side"),
    [("postgresql", True), ("sqlite", False)],
    indirect=["database_url"],
)
def test_alert_is_sent_by_other_service_after_kill(
    tmp_path: Path, database_url: str, side_by_side: bool
) -> None:
    """The first service is killed with SIGKILL before the webhook responds.

    The second service sends the notice again with the same id. It runs at the same time or is
    started afterwards.
    """
    names = {"a", "b"}
    services: dict[str, _Service] = {}
    settings = ServerSettings(port=0, http_port=0)
    with BrokerThread(settings) as broker, _hook() as (hook, url):
        try:
            for name in sorted(names) if side_by_side else ("a",):
                services[name] = _Service(tmp_path, name, broker, database_url, url)
            for service in services.values():
                service.url()
            asyncio.run(_fail_one(broker.url))
            teller, told = hook.posts.get(timeout=_PATIENCE_S)
            services[teller].kill()
            hook.answers.set()
            (other,) = names - {teller}
            if not side_by_side:
                services[other] = _Service(tmp_path, other, broker, database_url, url)
            assert hook.posts.get(timeout=_PATIENCE_S) == (other, told)
            _all_told(services[other])
        finally:
            for service in services.values():
                service.kill()
    assert hook.posts.empty()
