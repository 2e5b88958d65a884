"""An application that runs beside a test, in a thread of its own, on a broker with an address."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from hopback.broker.rabbitmq import RabbitMQ
from hopback.observe.events import Bus
from hopback.runtime.service import Service
from hopback.runtime.settling import Environment
from hopback.testing.captured import Happening
from hopback.waiting import first_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.runtime.app import App
    from hopback.runtime.shutdown import Report

__all__ = ["AppThread"]

_PATIENCE_S = 60.0  # far more than a start takes on a slow machine: what takes longer hangs


class AppThread:
    """A running application; use it as a context manager.

    `events` grows while it runs. `stop` ends it in order and returns the report.
    """

    def __init__(self, app: App, url: str) -> None:
        self._app = app
        self._url = url
        self.events: list[Happening] = []
        self.report: Report | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: Service | None = None
        self._error: BaseException | None = None
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

    def happened(self, name: str) -> list[Happening]:
        """The events of that name so far."""
        return [each for each in tuple(self.events) if each.name == name]

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error  # told to the thread that waits
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        world = Environment(bus=Bus(self._note), host="test")
        service = Service(self._app, RabbitMQ(self._url), world=world)
        self._loop, self._service = asyncio.get_running_loop(), service
        running = asyncio.create_task(service.run())
        await first_of(running, service.ready.wait())
        if not running.done():
            self._ready.set()
        self.report = await running

    def _note(self, name: str, fields: Mapping[str, Any]) -> None:
        self.events.append(Happening(name, fields, time.time()))
