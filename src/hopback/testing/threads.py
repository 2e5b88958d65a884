"""Run a broker and an application in background threads.

Tests can be synchronous or asynchronous and may use any AMQP client.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import Advanced, BrokerServer, ClockKind, ServerSettings
from hopback.durations import Duration, read_seconds
from hopback.observe.events import Bus
from hopback.runtime.service import Service
from hopback.runtime.settling import Environment
from hopback.testing.captured import EventRecord, Happening
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hopback.broker.embedded import NodeSnapshot
    from hopback.runtime.app import App
    from hopback.runtime.dependencies import Overrides
    from hopback.runtime.shutdown import Report
    from hopback.topology.model import Policy

T = TypeVar("T")


class BrokerThread:
    """Runs a broker in a background thread.

    Use it as a context manager. `url` is the address for AMQP clients, `http_url` the address of
    the management API. The methods must be called from the thread of the test.
    """

    def __init__(self, settings: ServerSettings | None = None) -> None:
        free = ServerSettings(port=0, http_port=0, clock=ClockKind.VIRTUAL)
        self._settings = settings or free
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hopback broker")
        self._server: BrokerServer | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            server = self._ask(lambda: BrokerServer(self._settings))
            self._do(server.start())
            self._server = server
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._do(self.server.stop())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def _ask(self, question: Callable[[], T]) -> T:
        async def asked() -> T:
            return question()

        return self._do(asked())

    @property
    def server(self) -> BrokerServer:
        """The server. It must only be used in the broker's thread."""
        if self._server is None:
            raise RuntimeError("expected a broker that was started. Use it in a `with` statement.")
        return self._server

    @property
    def url(self) -> str:
        """The AMQP URL of the broker."""
        return self.server.url

    @property
    def http_url(self) -> str:
        """The URL of the management API. The username and password are `guest`."""
        return self.server.http_url or ""

    @property
    def now(self) -> float:
        """The time of the broker in seconds since the epoch."""
        return self.server.time.clock.now()

    def advance(self, duration: Duration) -> Advanced:
        """Advance the clock of the broker and wait until clients have reacted."""
        return self._do(self.server.advance(duration))

    def snapshot(self) -> NodeSnapshot:
        """Return a snapshot of the broker."""
        return self._ask(self.server.snapshot)

    def set_policy(self, policy: Policy) -> None:
        """Create or replace a policy. Raises ValueError if RabbitMQ would respond with 400."""
        self._ask(lambda: self.server.set_policy(policy))

    def disconnect(self) -> None:
        """Close all connections, as if the broker was stopped."""
        self._do(self.server.disconnect())

    def restart(self) -> None:
        """Restart the broker. Connections are closed and non-durable objects and messages are lost."""
        self._do(self.server.restart())


_PATIENCE_S = 60.0  # seconds; much longer than any operation should take


class AppThread(EventRecord):
    """Runs an application in a background thread.

    Use it as a context manager. Events are added to `events` while the application is running.
    `overrides` replaces dependencies. If the application fails, its error is raised in the test.
    """

    def __init__(self, app: App, url: str, *, overrides: Overrides | None = None) -> None:
        self._app = app
        self._url = url
        self._overrides = overrides or {}
        super().__init__()
        self.report: Report | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: Service | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._news = threading.Condition()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"hopback {app.name}")

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(_PATIENCE_S):
            raise TimeoutError(f"expected the application to start within {_PATIENCE_S:g} s")
        self._raise_error()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop()
        if kind is None:
            self._raise_error()

    def stop(self) -> Report | None:
        """Stop the application gracefully and return its report. Raises the error if it failed."""
        self._stop()
        self._raise_error()
        return self.report

    def _stop(self) -> None:
        if self._loop is not None and self._service is not None:
            with suppress(RuntimeError):  # the loop is closed if the application has ended
                self._loop.call_soon_threadsafe(self._service.stop)
        self._thread.join(_PATIENCE_S)

    def _raise_error(self) -> None:
        """Raise the error of the application, but only once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait_for(
        self, name: str, *, times: int = 1, within: Duration = _PATIENCE_S, **fields: Any
    ) -> tuple[Happening, ...]:
        """Wait for `times` events with the given name and fields, and return them.

        Raises:
            TimeoutError: If the events do not occur in time, or the application has ended.
            BaseException: The error of the application, if it failed.
        """
        seconds = read_seconds(within, "within", where="wait_for")

        def found() -> tuple[Happening, ...]:
            return self.find_events(name, **fields)

        with self._news:
            self._news.wait_for(lambda: self._ended or len(found()) >= times, seconds)
            if len(found()) < times:
                self._raise_error()
                told = ", ".join(one.summary for one in tuple(self.events)) or "none"
                limit = "before the application ended" if self._ended else f"within {seconds:g} s"
                raise TimeoutError(
                    f"expected {times} {name} with {fields or 'any fields'} {limit},"
                    f" got {len(found())}. Events: {told}"
                )
        return found()

    def _plan(self, queue: str) -> object:
        if queue not in self._app.handlers:
            known = ", ".join(self._app.handlers)
            raise LookupError(f"expected a queue that is handled ({known}), got {queue!r}")
        return self._app.handlers[queue]

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error  # raised by the waiting thread
        finally:
            self._ready.set()
            with self._news:
                self._ended = True
                self._news.notify_all()

    async def _serve(self) -> None:
        environment = Environment(bus=Bus(self._note), host="test")
        with self._app.override(self._overrides):
            service = Service(self._app, RabbitMQ(self._url), environment=environment)
        self._loop, self._service = asyncio.get_running_loop(), service
        running = asyncio.create_task(service.run())
        await first_of(running, service.ready.wait())
        if not running.done():
            self._ready.set()
        self.report = await running

    def _note(self, name: str, fields: Mapping[str, Any]) -> None:
        with self._news:
            self.events.append(Happening(name, fields, time.time()))
            self._news.notify_all()
