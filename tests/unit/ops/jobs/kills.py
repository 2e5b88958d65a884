"""A process that is killed at a step of its job: before a publish, around a settlement or a line written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hopback.broker.embedded import Fault, Faults
from hopback.ops.jobs.journal import MemoryJournal

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded import EmbeddedBroker
    from hopback.ops.jobs.job_record import JobRecord
    from hopback.sql.sqlite import MemoryDatabase

__all__ = ["KilledJournal", "Steps", "end_leases"]

_STEPS = (Fault.CUT_BEFORE_PUBLISH, Fault.CUT_BEFORE_SETTLE, Fault.CUT_AFTER_SETTLE)


def end_leases(journal: MemoryJournal) -> None:
    """Let every running job look as if its process had not renewed its lease."""
    database = cast("MemoryDatabase", journal.database)
    database._open().execute("UPDATE hopback_jobs SET leased_by = '', leased_until = 0")


class KilledJournal(MemoryJournal):
    """A journal whose process can be killed. Only written data remains."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps
        self.told_done: list[int] = []

    def kill(self) -> None:
        """Kill the process. Another process sees that its lease has expired."""
        end_leases(self)

    async def save(self, job: JobRecord, owner: str, *failures: Any, **more: Any) -> None:
        """Write down, and be killed before or after."""
        self._steps.step()
        await super().save(job, owner, *failures, **more)
        self.told_done.append(job.counts.done)
        self._steps.step()


class Steps(Faults):
    """Kills the process at a step: before a publish, around a settlement or a line of the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = KilledJournal(self)
        self.broker: EmbeddedBroker | None = None
        self._left = 0
        self._until_call = 0
        self._call: Callable[[], None] | None = None

    def call_at(self, step: int, call: Callable[[], None]) -> None:
        """Call at this step, counted from now."""
        self._until_call, self._call = step, call

    def kill_at(self, step: int) -> None:
        """Kill at this step, counted from now."""
        self._left, self.active = step, True

    def step(self) -> bool:
        """Take one step and return whether it was the last."""
        self._left -= 1
        self._until_call -= 1
        if not self._until_call and self._call is not None:
            self._call()
        if self._left or self.broker is None:
            return False
        self.journal.kill()
        self.broker.cut(buffered=False)
        return True

    def strikes(self, fault: Fault) -> bool:
        """Whether the connection ends here, as all of them do."""
        return fault in _STEPS and self.step()
