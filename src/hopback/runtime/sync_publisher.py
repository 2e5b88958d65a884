"""Publish messages from synchronous code, such as Django or Flask views.

An event loop in a background thread manages the connections. Any number of threads can publish at
the same time.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import threading
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Self, Unpack

from hopback.broker.message_sender import MessageSender, refuse_delay
from hopback.durations import Duration, read_seconds
from hopback.errors import ConnectionFailed, InvalidDeclaration, Problem
from hopback.message import require_message
from hopback.runtime.address import broker_at
from hopback.runtime.context import PublishOptions, compose
from hopback.runtime.publish_arguments import explain_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hopback.broker.port import Broker
    from hopback.message import Message

_IN_FLIGHT = 500
"""Maximum number of unconfirmed messages of `send_all`."""


class SyncPublisher:
    """Publishes messages with confirms from any thread.

    This can be used as a context manager, and is closed automatically at exit. It connects on first
    use, and reconnects after a fork.

    Args:
        connections: Number of connections.
        timeout: Maximum time to wait for a connection. If it expires, the message is not sent and
            ConnectionFailed is raised.
    """

    def __init__(
        self,
        broker: Broker | str,
        *,
        name: str = "hopback publisher",
        connections: int = 1,
        timeout: Duration = 30.0,
    ) -> None:
        if connections < 1:
            problem = Problem("connections", "at least 1", str(connections))
            raise InvalidDeclaration((problem,), where="SyncPublisher")
        self._broker: Broker = broker_at(broker)
        self._name = name
        self._connections = connections
        self._timeout = read_seconds(timeout, "timeout", where="SyncPublisher", zero=False)
        self._starting = threading.Lock()
        self._running: _PublisherThread | None = None
        self._closed = False

    def __enter__(self) -> Self:
        self._loop()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @explain_arguments
    def publish(
        self,
        routing_key: str,
        payload: object,
        *,
        exchange: str = "",
        **options: Unpack[PublishOptions],
    ) -> None:
        """Publish a message and wait for the confirm.

        The message is published to the queue `routing_key` unless an exchange is given.

        Raises:
            PublishFailed: If the message is not confirmed.
        """
        self.send(compose(routing_key, payload, exchange=exchange, **options))

    def send(self, message: Message) -> None:
        """Publish a composed message and wait for the confirm."""
        refuse_delay(require_message(message))
        running = self._loop()
        asyncio.run_coroutine_threadsafe(running.send(message), running.loop).result()

    def send_all(self, messages: Iterable[Message]) -> int:
        """Publish several messages concurrently and return their number.

        Raises:
            ExceptionGroup: If messages were not confirmed.
        """
        running, errors, number = self._loop(), list[Exception](), 0
        source = iter(messages)
        while some := list(itertools.islice(source, _IN_FLIGHT)):
            for message in some:
                refuse_delay(require_message(message))
            work = asyncio.run_coroutine_threadsafe(running.send_all(some), running.loop)
            errors += work.result()
            number += len(some)
        if errors:
            raise ExceptionGroup(f"{len(errors)} of {number} messages were not published", errors)
        return number

    def close(self) -> None:
        """Wait for pending messages and close the connections. It is safe to call this more than
        once.
        """
        with self._starting:
            running, self._running, self._closed = self._running, None, True
        if running is not None and running.process == os.getpid():
            running.stop()
            atexit.unregister(self.close)

    def _loop(self) -> _PublisherThread:
        """Return the background thread of this process. It is started on first use."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError(
                "SyncPublisher would stop the event loop that runs here: "
                "use `Publisher`, and `await publisher.publish(…)`"
            )
        running = self._running
        if running is not None and running.process == os.getpid():
            return running
        with self._starting:
            if self._closed:
                raise ConnectionFailed("message not sent: the publisher is closed")
            if self._running is None or self._running.process != os.getpid():
                made = _PublisherThread(self._broker, self._name, self._connections, self._timeout)
                self._running = made
                atexit.register(self.close)
            return self._running


class _PublisherThread:
    """A background thread with the connections of a process."""

    def __init__(self, broker: Broker, name: str, connections: int, timeout: float) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._publishers: list[MessageSender] = []
        self._next = itertools.count()
        self._ending = asyncio.Event()
        self._idle = asyncio.Event()
        self._in_flight = 0
        self._started = threading.Event()
        self._error: BaseException | None = None
        # A daemon thread does not keep the program alive. `atexit` closes the connections.
        make = partial(MessageSender, broker, name=name, timeout=timeout)
        self._thread = threading.Thread(
            target=self._run, args=(make, connections), name=name, daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    async def send(self, message: Message) -> None:
        """Publish on the next connection of the pool."""
        self._in_flight += 1
        self._idle.clear()
        try:
            await self._publishers[next(self._next) % len(self._publishers)].send(message)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def send_all(self, messages: list[Message]) -> list[Exception]:
        """Publish several messages and return the errors."""
        fates = await asyncio.gather(*map(self.send, messages), return_exceptions=True)
        return [fate for fate in fates if isinstance(fate, Exception)]

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        self.loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    def _run(self, make: Callable[[], MessageSender], connections: int) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._serve(make, connections))
        except BaseException as error:
            self._error = error  # raised by the waiting thread
        finally:
            self._started.set()

    async def _serve(self, make: Callable[[], MessageSender], connections: int) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(connections):
                self._publishers.append(await stack.enter_async_context(make()))
            self._started.set()
            await self._ending.wait()
            if self._in_flight:
                await self._idle.wait()  # wait for pending confirms
