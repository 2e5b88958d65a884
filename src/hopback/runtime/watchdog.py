"""Notices an event loop that stands still, and answers probes meanwhile, each from a thread of its own.

A coroutine handler that computes, or calls something that blocks, stops everything in its process:
other handlers, heartbeats, probes. Nobody sees why from outside. The watchdog says where it is.
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
"""A loop that runs well comes round thousands of times in a second."""
_LOOK_S = 0.25  # so that what is noticed is told soon after its second
_DEAD_S = 60.0
"""A loop that has stood still for a minute is what a restart may repair: RabbitMQ has closed its
connections for want of heartbeats, and delivers their messages to others."""
_ANSWER_S = 1.0  # a probe waits a second or more; a loop that runs answers at once
_HOPBACK = str(Path(__file__).resolve().parents[1]) + os.sep


class Watchdog:
    """Watches the running loop from a thread; use it as a context manager, on the loop."""

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
        # It ends at once, unless it is just telling: then what it says is written before we go on.
        self._thread.join(_NOTICED_S)

    @property
    def stood_still(self) -> float:
        """For how many seconds the loop has not come round."""
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
            still = self.stood_still
            if still < _NOTICED_S:
                told_at = 0.0
            # A process that was stopped as a whole, or a machine that slept, blames nobody.
            elif not paused and still >= max(_NOTICED_S, 10 * told_at):
                told_at = still
                self._tell(still)

    def _tell(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - there is no other way
        task = asyncio.current_task(self._loop)
        if frame is None:
            return
        # The innermost line that is neither Hopback's nor a library's; the innermost one without.
        own: FrameType | None = frame
        libraries = (_HOPBACK, os.path.dirname(os.__file__))
        while own is not None and (
            own.f_code.co_filename.startswith(libraries) or "-packages" in own.f_code.co_filename
        ):
            own = own.f_back
        line = own or frame
        _LOG.warning(
            "the event loop has stood still for %.1f s in %s, at %s: nothing else runs meanwhile. "
            "Await what takes long, or make the handler a plain function: it then has a thread",
            seconds,
            "no task" if task is None else task.get_name(),
            f"{line.f_code.co_filename}, line {line.f_lineno}",
            extra={"hopback_stack": "".join(traceback.format_stack(frame))},
        )


class ThreadEndpoint:
    """An HTTP endpoint in a thread: requests are answered on the loop, and without it if that stands still.

    `respond` runs on the loop that opens it. While that stands still /healthz is answered here: alive
    until it has stood still for a minute; everything else is 503.
    """

    def __init__(self, respond: Respond, watchdog: Watchdog) -> None:
        self._respond = respond
        self._watchdog = watchdog
        self._asked_loop = asyncio.get_running_loop()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._close: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and tell where: port 0 takes a free one. OSError if the address is taken."""
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
        """Listen no more, and let the thread end."""
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
            still = self._watchdog.stood_still
            alive = request.path.strip("/") == "healthz" and still < _DEAD_S
            reason = f"the event loop has stood still for {still:.0f} s"
            said = {
                "ok": alive,
                "reasons": [] if alive else [reason],
                "stoodStill": round(still, 1),
            }
            status = HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE
            return Response(status, json.dumps(said).encode() + b"\n")
