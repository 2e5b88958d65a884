"""Find work that blocks an event loop. This is measured as CPU time of its thread.

The CPU time does not depend on the load of the machine. The garbage collector is not included,
because its time depends on objects of other tests.
"""

from __future__ import annotations

import gc
import time
from asyncio import Task
from asyncio.events import Handle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send

MOST_CPU_S = 0.5
"""Seconds. Known defects of this kind took 2.5 s and 6 s. When the host of a virtual machine
interrupts it, this also counts as CPU time: 0.1 to 0.25 s were seen in steps of 10 ms.
"""

_found: list[str] = []
# the seconds that the garbage collector has used, and the time when it was started
_collecting = [0.0, 0.0]


def _count_collection(phase: str, _info: object) -> None:
    if phase == "start":
        _collecting[1] = time.thread_time()
    else:
        _collecting[0] += time.thread_time() - _collecting[1]


@contextmanager
def _step(name: object) -> Iterator[None]:
    _collecting[0], start = 0.0, time.thread_time()
    try:
        yield
    finally:
        busy_s = time.thread_time() - start - _collecting[0]
        if busy_s > MOST_CPU_S:
            _found.append(f"{busy_s:.2f} s of CPU in {name}")


def _is_of_a_test(task: object) -> bool:
    """Return True if the task runs a test, which may compute and send many requests in one step."""
    code = getattr(task.get_coro(), "cr_code", None) if isinstance(task, Task) else None
    return code is not None and "/tests/" in code.co_filename


@contextmanager
def watch_loops() -> Iterator[list[str]]:
    """Yield a list of requests and tasks that computed for too long without a pause.

    Requests are only included if their application is wrapped with `watch_requests`. Tasks of tests
    are not included.
    """
    run: Any = Handle._run
    _found.clear()

    def run_watched(handle: Any) -> None:
        work = getattr(handle._callback, "__self__", handle)
        if _is_of_a_test(work):
            run(handle)
        else:
            with _step(work):
                run(handle)

    gc.callbacks.append(_count_collection)
    setattr(Handle, "_run", run_watched)  # noqa: B010  a method that typing does not let us replace
    try:
        yield _found
    finally:
        setattr(Handle, "_run", run)  # noqa: B010
        gc.callbacks.remove(_count_collection)


def watch_requests(app: ASGIApp) -> ASGIApp:
    """Wrap an application so that each step between two awaits is measured."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        name = f"{scope.get('method')} {scope.get('path')}"
        await _Watched(app(scope, receive, send), name)

    return answer


class _Watched:
    def __init__(self, work: Any, name: str) -> None:
        self._work = work
        self._name = name

    def __await__(self) -> Generator[Any, Any, None]:
        send, value = self._work.send, None
        while True:
            try:
                with _step(self._name):
                    awaited = send(value)
            except StopIteration:
                return
            try:
                value = yield awaited
                send = self._work.send
            except BaseException as error:  # a cancellation, or an error of the awaited object
                send, value = self._work.throw, error
