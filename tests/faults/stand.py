"""A virtual host on which the commands of operators are tested.

pika publishes the messages and counts them at the end. Their bodies are numbers. Each number must
be found at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika  # type: ignore[import-untyped]
from pika.exceptions import AMQPError  # type: ignore[import-untyped]

from tests.faults.auditor import bodies_in
from tests.harness.management import ManagementFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.rabbitmq import RabbitNode

__all__ = ["Holder", "Served", "Stand", "stand_on"]

_NO_ANSWER = (OSError, http.client.HTTPException, ManagementFailed, AMQPError)
_PATIENCE_S = 240.0
_HELD_BACK_S = 420.0
"""Seconds. A broker may hold a dead letter back for 180 s before it tries again, and this may
happen twice.
"""


@dataclass
class Stand:
    """A virtual host, the numbers that were confirmed on it, and the problems that were found."""

    node: RabbitNode
    url: str
    folder: Path
    sent: int = 0
    confirmed: set[int] = field(default_factory=set)
    exported: set[int] = field(default_factory=set)
    """The numbers in the files that discards have written."""
    problems: list[str] = field(default_factory=list)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    state: list[dict[str, Any]] = field(default_factory=list)
    """The queues at the end."""

    @property
    def vhost(self) -> str:
        """The name of the virtual host."""
        return self.url.rpartition("/")[2]

    # --- messages ----------------------------------------------------------------------------------

    async def put(self, queue: str, count: int) -> None:
        """Publish messages to a queue and wait for the confirms."""
        await asyncio.to_thread(self._put, queue, count)

    def _put(self, queue: str, count: int) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        for number in range(self.sent, self.sent + count):
            self.sent = number + 1
            properties.message_id = str(number)
            channel.basic_publish("", queue, str(number).encode(), properties, mandatory=True)
            self.confirmed.add(number)
        connection.close()

    async def declare(self, queue: str, arguments: dict[str, Any]) -> None:
        """Declare a queue that belongs to another application."""
        await asyncio.to_thread(
            self._on_channel, "queue_declare", queue, arguments=arguments, durable=True
        )

    async def delete(self, queue: str) -> None:
        await asyncio.to_thread(self._on_channel, "queue_delete", queue)

    def _on_channel(self, method: str, *arguments: Any, **options: Any) -> Any:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        answer = getattr(connection.channel(), method)(*arguments, **options)
        connection.close()
        return answer

    async def until_none_is_ready(self, queue: str) -> None:
        """Wait until no message of a queue is ready."""
        while await asyncio.to_thread(self._ready, queue):  # noqa: ASYNC110 - the broker does not signal it
            await asyncio.sleep(0.5)

    def _ready(self, queue: str) -> int:
        found = self._on_channel("queue_declare", queue, passive=True)
        return int(found.method.message_count)

    async def look(self, queue: str, times: int) -> None:
        """Take messages several times. They are requeued by closing the connection."""
        for _ in range(times):
            holder = Holder(self.url, queue, 500)
            await asyncio.to_thread(holder.take)
            await asyncio.to_thread(holder.let_go)

    # --- the command -------------------------------------------------------------------------------

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `hopback …` with its output redirected to a file."""
        environment = {
            **os.environ,
            "HOPBACK_BROKER": self.url,
            "HOPBACK_MANAGEMENT": self.node.management_url,
            "HOPBACK_STORE": f"sqlite:///{self.folder / 'jobs.db'}",
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.folder),
            "XDG_DATA_HOME": str(self.folder),
        }
        with (self.folder / "said").open("ab") as said:
            child = subprocess.Popen(
                [sys.executable, "-m", "hopback", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        self.children.append(child)
        return child

    async def wait_ended(
        self, child: subprocess.Popen[bytes], seconds: float = _PATIENCE_S
    ) -> int | None:
        """Wait for a process. Returns its exit code, or None if it has not ended in time."""
        try:
            return await asyncio.to_thread(child.wait, seconds)
        except subprocess.TimeoutExpired:
            return None

    async def run(self, *arguments: str, seconds: float = _PATIENCE_S) -> int | None:
        """Run `hopback …` and wait until it has ended."""
        return await self.wait_ended(self.start(*arguments), seconds)

    async def until_done(self, *arguments: str) -> None:
        """Run a command repeatedly until it succeeds. If it does not, a problem is recorded."""
        deadline = time.monotonic() + _PATIENCE_S
        code = await self.run(*arguments)
        while code != 0 and time.monotonic() < deadline:
            await asyncio.sleep(1)
            code = await self.run(*arguments)
        if code != 0:
            said = (self.folder / "said").read_text(errors="replace")[-600:]
            self.problems.append(
                f"`{' '.join(arguments)}` ends with {code}: {' '.join(said.split())}"
            )

    def kill(self, child: subprocess.Popen[bytes], name: str) -> None:
        """Kill a command with SIGKILL. This does not count as a fault if the command has already
        ended.
        """
        if child.poll() is None:
            self.faults[f"{name}: kill -9"] += 1
            child.kill()
        child.wait()

    async def serve(self, *arguments: str) -> Served:
        """Start `hopback serve` and wait until it responds.

        It ends if the broker is down when it starts. Then it is started again, as a supervisor does.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            served = Served(self.start("serve", "--http", str(port), *arguments), port)
            await served.until_up()
            if served.child.poll() is None or time.monotonic() > deadline:
                return served

    # --- the end -----------------------------------------------------------------------------------

    def queues(self) -> list[dict[str, Any]]:
        """Return all queues of the virtual host from the HTTP API."""
        found: list[dict[str, Any]] = self.node.management.call("GET", f"/queues/{self.vhost}")
        return found

    async def audit(self) -> Counter[int]:
        """Kill all processes, wait until no message is held back, and count how often each number
        was found.
        """
        for child in self.children:
            child.kill()
            child.wait()
        deadline = time.monotonic() + _HELD_BACK_S
        quiet = 0
        while quiet < 3 and time.monotonic() < deadline:
            await asyncio.sleep(5)
            with contextlib.suppress(*_NO_ANSWER):
                found = await asyncio.to_thread(self.queues)
                held = sum(
                    one.get("messages_unacknowledged", 1) + one.get("messages_dlx", 0)
                    for one in found
                )
                quiet = 0 if held else quiet + 1
        self.state = await asyncio.to_thread(self.queues)
        names = [one["name"] for one in self.state]
        bodies = await asyncio.to_thread(bodies_in, self.url, names)
        return Counter(int(body) for found in bodies.values() for body in found)

    def evidence(self) -> str:
        """Describe the final state and the last output of the commands."""
        queues = {one["name"]: (one.get("type"), one.get("messages")) for one in self.state}
        said = (self.folder / "said").read_text(errors="replace")
        return f"queues: {queues}, output: {' / '.join(said.splitlines())[-1500:]}".replace(
            "|", "!"
        )


class Holder:
    """A client that holds messages without a consumer. A page or a consumer that is stopping does
    the same.
    """

    def __init__(self, url: str, queue: str, count: int) -> None:
        self._url, self._queue, self._count = url, queue, count
        self._connection: pika.BlockingConnection | None = None
        self._over = threading.Event()

    def take(self) -> None:
        """Take up to `count` messages and hold them until `let_go`."""
        parameters = pika.URLParameters(self._url)
        parameters.heartbeat = 0  # the client does not send heartbeats while it holds messages
        self._connection = pika.BlockingConnection(parameters)
        channel = self._connection.channel()
        for _ in range(self._count):
            if channel.basic_get(self._queue)[0] is None:
                break

    def let_go(self) -> None:
        """Close the connection, so that the broker requeues the messages."""
        if self._connection is not None:
            with contextlib.suppress(AMQPError, OSError):
                self._connection.close()


@dataclass
class Served:
    """A process of `hopback serve`."""

    child: subprocess.Popen[bytes]
    port: int

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """Send a request. Returns None if there is no valid response."""
        with contextlib.suppress(*_NO_ANSWER, ValueError):
            return await asyncio.to_thread(self._call, method, path, body)
        return None

    def _call(self, method: str, path: str, body: object) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 400:
            raise ManagementFailed(method, path, answer.status, text)
        return json.loads(text) if text else None

    async def until_up(self) -> None:
        """Wait until the server responds, for at most a minute."""
        for _ in range(300):
            if await self.call("GET", "/admin/me") is not None or self.child.poll() is not None:
                return
            await asyncio.sleep(0.2)


@asynccontextmanager
async def stand_on(node: RabbitNode) -> AsyncIterator[Stand]:
    """Create a virtual host on a node. Its processes are killed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="hopback-stand-"))
    stand = Stand(node, node.vhost_url(f"s-{uuid.uuid4().hex[:8]}"), folder)
    try:
        yield stand
    finally:
        for child in stand.children:
            child.kill()
            child.wait()
        shutil.rmtree(folder, ignore_errors=True)
