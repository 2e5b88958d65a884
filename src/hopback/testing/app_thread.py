"""An application that runs beside a test, in a thread of its own, on a broker with an address."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from hopback.broker.rabbitmq import RabbitMQ
from hopback.observe.events import Bus
from hopback.runtime.service import Service
from hopback.runtime.settling import Environment
from hopback.testing.captured import EventRecord, Happening
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.runtime.app import App
    from hopback.runtime.dependencies import Overrides
    from hopback.runtime.shutdown import Report

__all__ = ["AppThread"]

_PATIENCE_S = 60.0  # far more than a start takes on a slow machine: what takes longer hangs


class AppThread(EventRecord):
    """A running application; use it as a context manager.

    `events` grows while it runs, and `wait_for` waits for one. `stop` ends it in order and returns
    the report. `overrides` puts providers of dependencies in the place of others.
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
        self._news = threading.Condition()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"hopback {app.name}")

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(_PATIENCE_S):
            raise TimeoutError(f"expected the application to start within {_PATIENCE_S:g} s")
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> Report | None:
        """Shut down in order; what was handled and what was left."""
        if self._loop is not None and self._service is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._service.stop)
        self._thread.join(_PATIENCE_S)
        return self.report

    def wait_for(
        self, name: str, *, times: int = 1, within: float = _PATIENCE_S, **fields: Any
    ) -> tuple[Happening, ...]:
        """The events of that name with those fields, once there are so many of them.

        TimeoutError tells what happened instead within so many seconds.
        """

        def found() -> tuple[Happening, ...]:
            return self.happened(name, **fields)

        with self._news:
            if not self._news.wait_for(lambda: len(found()) >= times, within):
                told = "; ".join(one.told for one in tuple(self.events)) or "nothing"
                raise TimeoutError(
                    f"expected {times} {name} with {fields or 'any fields'} within {within:g} s,"
                    f" got {len(found())}. What happened: {told}"
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
            self._error = error  # told to the thread that waits
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        world = Environment(bus=Bus(self._note), host="test")
        with ExitStack() as stack:
            for provider, replacement in self._overrides.items():
                stack.enter_context(self._app.override(provider, replacement))
            service = Service(self._app, RabbitMQ(self._url), world=world)
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
