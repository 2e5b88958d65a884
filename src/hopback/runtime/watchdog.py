"""Detect a blocked event loop.

If a handler blocks the event loop, other handlers, heartbeats and health checks stop. The watchdog
logs the line of code that is blocking, and responds to health checks in the meantime.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
import traceback
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from hopback.endpoint import Endpoint, Request, Respond, Response

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


_LOG = logging.getLogger("hopback.runtime")

_NOTICED_S = 1.0
"""Seconds after which the event loop counts as blocked."""
_LOOK_S = 0.25  # seconds between checks
_DEAD_S = 60.0
"""Seconds after which the process counts as dead. By then, RabbitMQ has closed the connections because of
missing heartbeats.
"""
_ANSWER_S = 1.0  # seconds to wait for a response of the event loop
_HOPBACK = str(Path(__file__).resolve().parents[1]) + os.sep


class Watchdog:
    """Watches the event loop from a thread. Used as a context manager."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._came_round = now()
        self._tick: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hopback watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._come_round()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._tick is not None:
            self._tick.cancel()
        # The thread may be writing a report, so wait for it.
        self._thread.join(_NOTICED_S)

    @property
    def blocked_seconds(self) -> float:
        """How long the event loop has been blocked, in seconds."""
        late = self._now() - self._came_round - _LOOK_S
        return late if late > 0 else 0.0

    def _come_round(self) -> None:
        self._came_round = self._now()
        self._tick = self._loop.call_later(_LOOK_S, self._come_round)

    def _watch(self) -> None:
        told_at = 0.0
        looked = self._now()
        while not self._ended.wait(_LOOK_S):
            now = self._now()
            paused, looked = now - looked > _NOTICED_S, now
            still = self.blocked_seconds
            if still < _NOTICED_S:
                told_at = 0.0
            # The whole process was suspended, so don't report this.
            elif not paused and still >= max(_NOTICED_S, 10 * told_at):
                told_at = still
                self._tell(still)

    def _tell(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - there is no other way
        task = asyncio.current_task(self._loop)
        if frame is None:
            return
        # Find the innermost frame outside of Hopback and libraries.
        own: FrameType | None = frame
        libraries = (_HOPBACK, os.path.dirname(os.__file__))
        while own is not None and (
            own.f_code.co_filename.startswith(libraries) or "-packages" in own.f_code.co_filename
        ):
            own = own.f_back
        line = own or frame
        _LOG.warning(
            "the event loop has been blocked for %.1f s in %s, at %s. No other task runs meanwhile. "
            "Await long operations, or make the handler a plain function, which runs in a thread",
            seconds,
            "no task" if task is None else task.get_name(),
            f"{line.f_code.co_filename}, line {line.f_lineno}",
            extra={"hopback_stack": "".join(traceback.format_stack(frame))},
        )


class ThreadEndpoint:
    """An HTTP endpoint that keeps responding while the event loop is blocked.

    `respond` is normally called on the event loop. While the loop is blocked, /healthz succeeds for
    up to a minute and all other paths return 503.
    """

    def __init__(self, respond: Respond, watchdog: Watchdog) -> None:
        self._respond = respond
        self._watchdog = watchdog
        self._asked_loop = asyncio.get_running_loop()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._close: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Start listening and return the host and port. Raises OSError if the port is in use."""
        opened: asyncio.Future[tuple[str, int]] = self._asked_loop.create_future()

        def tell(found: tuple[str, int] | OSError) -> None:
            if isinstance(found, OSError):
                opened.set_exception(found)
            else:
                opened.set_result(found)

        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(host, port, tell)), name="hopback http"
        )
        self._thread.start()
        return await opened

    async def close(self) -> None:
        if self._own_loop is not None and self._close is not None:
            self._own_loop.call_soon_threadsafe(self._close.set)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def _serve(
        self, host: str, port: int, tell: Callable[[tuple[str, int] | OSError], None]
    ) -> None:
        endpoint = Endpoint(self._answer)
        try:
            address = await endpoint.open(host, port)
        except OSError as error:
            self._asked_loop.call_soon_threadsafe(tell, error)
            return
        self._close, self._own_loop = asyncio.Event(), asyncio.get_running_loop()
        self._asked_loop.call_soon_threadsafe(tell, address)
        await self._close.wait()
        await endpoint.close()

    async def _answer(self, request: Request) -> Response:
        async def ask() -> Response:
            return await self._respond(request)

        asked = asyncio.run_coroutine_threadsafe(ask(), self._asked_loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked), _ANSWER_S)
        except TimeoutError:
            still = self._watchdog.blocked_seconds
            alive = request.path.strip("/") == "healthz" and still < _DEAD_S
            reason = f"the event loop has been blocked for {still:.0f} s"
            said = {
                "ok": alive,
                "reasons": [] if alive else [reason],
                "stoodStill": round(still, 1),
            }
            status = HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE
            return Response(status, json.dumps(said).encode() + b"\n")
