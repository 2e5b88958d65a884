"""Measure the memory while many messages are published and consumed in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.contestants import HOPBACK, PythonClient
from benchmarks.workload import Scenario

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.broker_setup import BrokerSetup
    from benchmarks.workload import Measured

__all__ = ["Memory", "measure_memory"]

_WARM_UP = 0.1
_FLAT_KIB = 4096


@dataclass(frozen=True, slots=True)
class Memory:
    """The resident memory after the warm-up, which is a tenth of the messages, and at the end."""

    count: int
    warm_kib: int
    end_kib: int
    peak_kib: int

    @property
    def flat(self) -> bool:
        return self.end_kib - self.warm_kib <= _FLAT_KIB

    @classmethod
    def of(cls, measured: Measured) -> Memory:
        warm = next(kib for done, kib in measured.samples if done >= measured.count * _WARM_UP)
        return cls(measured.count, warm, measured.samples[-1][1], measured.peak_kib)


def measure_memory(setup: BrokerSetup, python: Path, count: int) -> Memory:
    """Publish and consume messages with Hopback."""
    client = PythonClient(HOPBACK, "hopback_client", python)
    job = setup.job(client, Scenario.FLOW, "classic", count)
    measured = client.run(job)
    setup.verify(job, client)
    return Memory.of(measured)
