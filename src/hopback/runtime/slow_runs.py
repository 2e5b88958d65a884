"""Detect and report handlers that do not return, and protect other messages from them.

If a delivery is not settled within the consumer timeout (30 minutes by default), RabbitMQ closes
its channel and requeues all deliveries on that channel. RabbitMQ 4.3 cancels the consumer instead.
There is no way to query the timeout of a broker. We handle this as follows:

1. A run is *slow* after 20 s. Its consumer moves to a new channel, and the old one stays open for the
   deliveries that are still being handled. If the timeout strikes, only slow deliveries are requeued. All
   timeouts supported by RabbitMQ are longer than 20 s (at least a minute). If the timeout turns out to be
   shorter, the threshold is adjusted.
2. A run is *stuck* after 5 minutes. It is reported once, with its stack. If all handlers of a queue are
   stuck, the queue is not ready.
3. A run is cancelled if its delivery was requeued by the broker. Threads cannot be cancelled, so they are
   only reported. The redelivered message counts as a failed attempt. It is not handled again while the
   first call is still running in this process.
4. If the consumer timeout of a queue is known from its arguments or a policy, runs are cancelled shortly
   before it expires.

A single timer checks all runs of a process every few seconds, so messages that are handled quickly
have no overhead.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hopback.errors import BrokerError, PreconditionFailed
from hopback.headers import failure_from_exception, identity
from hopback.policy.outcome import Retry
from hopback.runtime.answer import Answer, ConsumeSession, HeldDelivery
from hopback.waiting import loop_time

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from types import FrameType

    from hopback.message import Delivery
    from hopback.runtime.settling import Environment
    from hopback.runtime.worker import Work
    from hopback.topology.plan import Plan

_SLOW_S = 20.0
"""See rule 1. Handlers that usually take longer cost a new channel about every 20 s."""
_SHORTEST_SLOW_S = 1.0  # consumer timeouts of a few seconds are only used in tests
_STUCK_S = 300.0
"""See rule 2. A handler with a longer `deadline` is stuck after its deadline."""
_SHARE_OF_TIMEOUT = 0.8
"""See rule 4: the rest of the consumer timeout is for the retry to be published."""
_MOST_LOST = 1000
"""Deliveries that were taken back, remembered until they return. The oldest is forgotten first."""
# if a message has not returned within an hour, it was handled by another process
_FORGET_S = 3600.0
_TIMED_OUT = re.compile(
    r"delivery acknowledgement on channel \d+ timed out.*?used: (-?\d+) ms", re.DOTALL
)
_HOPBACK = str(Path(__file__).resolve().parents[1]) + os.sep

_THREADS: dict[int, int] = {}
"""The thread of each sync handler that runs now, by the id of its delivery."""


class CurrentRun(NamedTuple):
    """A task that handles one or more deliveries."""

    task: asyncio.Task[None]
    deliveries: Sequence[HeldDelivery]

    @property
    def first(self) -> HeldDelivery:
        """The first delivery, which identifies the run."""
        return self.deliveries[0]


class _HandlerStuck(Exception):
    """Raised when a handler did not return in time."""


@dataclass(slots=True, eq=False)
class _LostRun:
    """A run whose delivery was requeued by the broker."""

    taken: HeldDelivery
    task: asyncio.Task[None]
    attempt: int
    seconds: float
    at: float
    is_certain: bool = False


def in_thread(
    delivery: Delivery, call: Callable[..., object], arguments: tuple[object, ...]
) -> object:
    """Call a sync handler and remember its thread."""
    _THREADS[id(delivery)] = threading.get_ident()
    try:
        return call(*arguments)
    finally:
        del _THREADS[id(delivery)]


def threads_in_use() -> int:
    """Count the sync handlers that are running."""
    return len(_THREADS)


def consumer_timeout_in(error: BrokerError | None) -> float | None:
    """Return the consumer timeout in seconds if it caused the error.

    Returns 0 if the duration is not known, and None if the error has a different cause.
    """
    found = _TIMED_OUT.search(str(error)) if isinstance(error, PreconditionFailed) else None
    return None if found is None else max(0.0, int(found[1]) / 1000)


class SlowRuns:
    """Monitors the runs of a queue."""

    def __init__(
        self,
        plan: Plan,
        work: Work,
        environment: Environment,
        *,
        deadline: float | None = None,
        timeout: float | None = None,
    ) -> None:
        self._plan = plan
        self._work = work
        self._environment = environment
        self._stuck_s = max(_STUCK_S, deadline or 0.0)
        self._slow_s = _SLOW_S
        self._timeout: float | None = None
        """The consumer timeout of the queue, if known."""
        self._time = loop_time
        self._seen: dict[HeldDelivery, float] = {}
        """The time when each run was first seen."""
        self._reported: set[HeldDelivery] = set()
        self._lost: dict[str, _LostRun] = {}
        self._taken_back: set[HeldDelivery] = set()
        """Deliveries that were taken back while they are still being handled."""
        self.slow: tuple[CurrentRun, ...] = ()
        self.stuck: tuple[CurrentRun, ...] = ()
        if timeout is not None:
            self.know_timeout(timeout)

    def know_timeout(self, seconds: float) -> None:
        self._timeout = seconds
        self._learn(seconds)

    def _learn(self, seconds: float) -> None:
        """Lower the threshold if the consumer timeout requires it."""
        self._slow_s = max(_SHORTEST_SLOW_S, min(self._slow_s, seconds / 3))

    @property
    def look_every(self) -> float:
        """Number of seconds between checks."""
        return self._slow_s / 4

    def look(self) -> None:
        """Find slow and stuck runs."""
        now = self._time()
        runs = self._work.runs()
        seen = self._seen
        self._seen = {run.first: seen.get(run.first, now) for run in runs}
        self._reported.intersection_update(self._seen)
        aged = [(run, now - self._seen[run.first]) for run in runs]
        self.slow = tuple(run for run, age in aged if age >= self._slow_s)
        stuck_s = self._stuck_s
        if self._timeout is not None:
            stuck_s = min(stuck_s, self._timeout / 2)
        self.stuck = tuple(run for run, age in aged if age >= stuck_s and not _is_settling(run))
        self._work.disregard({run.task for run in self.slow})
        for run in self.stuck:
            self._on_stuck(run, now)
        if self._lost or self._taken_back:
            self._forget(now)

    def names(self) -> str:
        """Describe the messages of all stuck runs."""
        ids = [_name(taken) for run in self.stuck for taken in run.deliveries]
        more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
        return ", ".join(ids[:5]) + more

    def _on_stuck(self, run: CurrentRun, now: float) -> None:
        taken = run.first
        seconds = now - self._seen[taken]
        if taken not in self._reported:
            self._reported.add(taken)
            self._emit("handler.slow", taken, seconds, stack=_stack(run))
        if self._timeout is None or seconds < self._timeout * _SHARE_OF_TIMEOUT:
            return
        if _is_in_thread(run) or any(one.session.ended.is_set() for one in run.deliveries):
            return
        reason = (
            f"the handler did not return within {seconds:.0f} s. "
            f"The consumer timeout of its queue is {self._timeout:g} s"
        )
        self._emit("delivery.taken_back", taken, seconds, stopped=True, stack=_stack(run))
        self._work.end_early(run.task, _failure(reason))

    def _emit(self, name: str, taken: HeldDelivery, seconds: float, **more: object) -> None:
        fields = {
            "queue": self._plan.queue,
            "message_id": taken.delivery.properties.message_id,
            "duration": seconds,
        }
        self._environment.bus.emit(name, fields | more)

    def on_timeout(self, session: ConsumeSession, timeout: float) -> None:
        """Called when a consumer timeout has caused the broker to close the channel."""
        if timeout:
            self._learn(timeout)
        blamed_s = min(timeout / 2 or self._slow_s, self._slow_s)
        found = self._remember(session)
        oldest = min((lost.taken.delivery.tag for lost in found), default=0)
        for lost in found:
            if lost.taken.delivery.tag == oldest:
                # the run may not have been seen by a check yet
                lost.seconds = max(lost.seconds, timeout)
            if lost.seconds >= blamed_s or lost.taken.delivery.tag == oldest:
                self._take_back(lost)
            else:
                self._lost.pop(self._key(lost.taken), None)  # not the cause of the timeout

    def on_cancel(self, session: ConsumeSession) -> None:
        """Called when the broker has cancelled the consumer, which may have requeued deliveries."""
        self._remember(session)

    def _remember(self, session: ConsumeSession, key: str = "") -> list[_LostRun]:
        """Remember the runs of a session, or only the run with the given key."""
        now, found = self._time(), []
        for run in self._work.runs():
            seconds = now - self._seen.get(run.first, now)
            for taken in run.deliveries:
                if taken.session is not session or taken in self._taken_back or _is_settling(run):
                    continue
                own = self._key(taken)
                if not key or own == key:
                    attempt = taken.reading(self._plan).attempt
                    self._lost[own] = _LostRun(taken, run.task, attempt, seconds, now)
                    found.append(self._lost[own])
        while len(self._lost) > _MOST_LOST:
            del self._lost[next(iter(self._lost))]
        return found

    def _key(self, taken: HeldDelivery) -> str:
        return identity(taken.delivery)

    def _take_back(self, lost: _LostRun) -> None:
        """Handle a delivery that was requeued by the broker."""
        lost.is_certain = True
        self._taken_back.add(lost.taken)
        run = CurrentRun(lost.task, (lost.taken,))
        if not self._is_running(lost):
            return
        stopped = not _is_in_thread(run)
        self._emit(
            "delivery.taken_back", lost.taken, lost.seconds, stopped=stopped, stack=_stack(run)
        )
        if stopped:
            lost.task.cancel()

    def _is_running(self, lost: _LostRun) -> bool:
        return any(
            run.task is lost.task and lost.taken in run.deliveries for run in self._work.runs()
        )

    @property
    def expects_returns(self) -> bool:
        """Whether the broker may have requeued a delivery."""
        return bool(self._lost or self.slow)

    def answer_to_return(self, taken: HeldDelivery) -> Answer | None:
        """Return a result if an earlier run is still handling the message, and None otherwise."""
        returned = taken.delivery.redelivered
        if not self._lost and not returned:
            return None
        key = self._key(taken)
        if returned and key not in self._lost:
            # The redelivery may arrive before we notice that its old channel was closed.
            for session in {one.session for run in self.slow for one in run.deliveries}:
                if session is not taken.session:
                    self._remember(session, key)
        lost = self._lost.get(key)
        if lost is None or lost.taken.delivery.body != taken.delivery.body:
            return None
        attempt = taken.reading(self._plan).attempt
        if returned and attempt == lost.attempt:
            if not lost.is_certain:
                self._learn(lost.seconds)
                self._take_back(lost)
            if not _is_in_thread(CurrentRun(lost.task, (lost.taken,))):
                del self._lost[key]
            return _failure(
                f"the broker took the message back (consumer timeout): "
                f"the handler had not returned for {lost.seconds:.0f} s or more"
            )
        if lost.is_certain and attempt > lost.attempt and self._is_running(lost):
            return _failure(
                f"the broker took the message back in attempt {lost.attempt} (consumer timeout), and the "
                f"handler has not returned for {self._time() - lost.at + lost.seconds:.0f} s or more"
            )
        return None

    def _forget(self, now: float) -> None:
        running = {taken for run in self._work.runs() for taken in run.deliveries}
        self._taken_back &= running
        for key, lost in tuple(self._lost.items()):
            if now - lost.at > _FORGET_S and lost.taken not in running:
                del self._lost[key]


def _failure(reason: str) -> Answer:
    error = _HandlerStuck(reason)
    return Answer(Retry(reason), failure_from_exception(error), error=error)


def _name(taken: HeldDelivery) -> str:
    return taken.delivery.properties.message_id or f"delivery {taken.delivery.tag}"


def _is_in_thread(run: CurrentRun) -> bool:
    return any(id(taken.delivery) in _THREADS for taken in run.deliveries)


def _is_settling(run: CurrentRun) -> bool:
    """Return True if the handler has returned and the delivery is being settled."""
    return any(frame.f_code.co_qualname in _SETTLING for frame in _frames(run.task))


_SETTLING = frozenset({"Settling.conclude", "Batches._conclude_all"})


def _frames(task: asyncio.Task[None]) -> list[FrameType]:
    """Return all frames of a suspended task, outermost first. `Task.get_stack` only returns one."""
    frames = []
    waiting: object = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is not None:
            frames.append(frame)
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return frames


def _stack(run: CurrentRun) -> str:
    """Format the stack of a handler and omit the frames of Hopback."""
    thread = next((_THREADS.get(id(taken.delivery)) for taken in run.deliveries), None)
    if thread is not None:
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way
        walked = [] if frame is None else [one for one, _ in traceback.walk_stack(frame)][::-1]
    else:
        walked = _frames(run.task)
    own = next((at for at, one in enumerate(walked) if _is_foreign(one.f_code.co_filename)), 0)
    shown = traceback.StackSummary.extract((one, one.f_lineno) for one in walked[own:])
    return "".join(shown.format()).rstrip("\n")


def _is_foreign(file: str) -> bool:
    return not file.startswith((_HOPBACK, os.path.dirname(os.__file__)))
