"""The clients to measure and their scenarios. To add a row, add an entry here and a module in
clients/.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from benchmarks.environment import ROOT, WORK
from benchmarks.workload import BODY, Measured, Scenario

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.workload import Job

__all__ = [
    "APPLICATION",
    "AWAITING",
    "BARE_LOOP",
    "BARE_PUBLISH",
    "C50",
    "HARDENED",
    "HOPBACK",
    "METRICS",
    "RECORDED",
    "REDRIVE",
    "SHOVEL",
    "UNRECORDED",
    "UVLOOP",
    "C",
    "CClient",
    "Contestant",
    "PythonClient",
    "contestants",
]

_SECONDS = 120.0
# The lowest rate of the C client in messages per second. A million messages may take minutes.
_SLOWEST = 1000
_MOVES = (Scenario.MOVE_REAL, Scenario.FAIL, Scenario.PARK)
"""Scenarios that are simple moves for a client without failure handling."""
_ALL = (Scenario.CONSUME, Scenario.PUBLISH, Scenario.PUBLISH_ONE, Scenario.MOVE, Scenario.RETRY)

HOPBACK = "Hopback"
UVLOOP = "Hopback on uvloop"
APPLICATION = "Hopback, application with JSON"
HARDENED = "Hopback, application, hardened"
METRICS = "Hopback, application with metrics"
AWAITING = "Hopback, application that awaits"
UNRECORDED = "Hopback, application, traced, sampled out"
RECORDED = "Hopback, application, traced, recorded"
REDRIVE = "Hopback, re-drive job"
SHOVEL = "shovel plugin"
BARE_LOOP = "a loop without a broker"
BARE_PUBLISH = "bare asyncio"
C = "C client"
C50 = "C client, multiple every 50"


class Contestant(Protocol):
    """A client that can run a job."""

    @property
    def name(self) -> str: ...
    @property
    def scenarios(self) -> tuple[Scenario, ...]: ...
    @property
    def body(self) -> str: ...
    @property
    def layout(self) -> str: ...
    @property
    def variant(self) -> str: ...

    def run(self, job: Job) -> Measured:
        """Run the job as a process."""


@dataclass(frozen=True, slots=True)
class PythonClient:
    """A module in `benchmarks.clients`, which the Python of the peers runs."""

    name: str
    module: str
    python: Path
    scenarios: tuple[Scenario, ...] = _ALL
    variant: str = ""
    body: str = BODY
    layout: str = "plain"

    def run(self, job: Job) -> Measured:
        command = [str(self.python), "-m", f"benchmarks.clients.{self.module}", job.to_json()]
        return _answer(
            self.name,
            subprocess.run(
                command,
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS * 10 if job.scenario == Scenario.FLOW else _SECONDS,
                env=_environment(),
            ),
        )


def _environment() -> dict[str, str]:
    """Return an environment in which modules are only compiled once, because hundreds of processes
    import them.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(WORK / "pycache")}


@dataclass(frozen=True, slots=True)
class CClient:
    """The C program. `consume` is the scenario that defines how it settles."""

    name: str
    program: Path
    scenarios: tuple[Scenario, ...] = _ALL
    consume: Scenario = Scenario.CONSUME
    variant: str = ""
    body: str = BODY
    layout: str = "plain"
    keeps_headers: bool = False

    def run(self, job: Job) -> Measured:
        scenario: str = self.consume if job.scenario == Scenario.CONSUME else job.scenario
        if scenario in _MOVES:
            scenario = "move-kept" if self.keeps_headers else Scenario.MOVE
        command = [
            str(self.program),
            scenario,
            job.host,
            str(job.port),
            job.vhost,
            job.queue,
            job.target,
            str(job.count),
            str(job.prefetch),
            str(job.window),
        ]
        return _answer(
            self.name,
            subprocess.run(
                command,
                input=job.body,
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS + job.count / _SLOWEST,
            ),
        )


def _answer(name: str, ran: subprocess.CompletedProcess[str]) -> Measured:
    if ran.returncode != 0:
        sys.stderr.write(ran.stderr)
        # The last line of the error is shown on the page. A traceback would contain paths of this
        # machine.
        words = ran.stderr.strip().splitlines() or ["no output"]
        raise RuntimeError(f"{name} failed ({ran.returncode}): {words[-1]}")
    answer = json.loads(ran.stdout.strip().splitlines()[-1])
    answer["samples"] = tuple(tuple(pair) for pair in answer.get("samples", ()))
    return Measured(**answer)


def _dramatiq_body() -> str:
    """Return a message of the same size in Dramatiq's format."""
    message: dict[str, object] = {
        "queue_name": "bench.dramatiq",
        "actor_name": "noop",
        "args": [""],
        "kwargs": {},
        "options": {},
        "message_id": "00000000-0000-0000-0000-000000000000",
        "message_timestamp": 1_700_000_000_000,
    }
    message["args"] = ["a" * (len(BODY) - len(json.dumps(message)))]
    return json.dumps(message)


def contestants(
    python: Path, c_program: Path | None, management: str = ""
) -> tuple[Contestant, ...]:
    """Return all clients. The first one is the C client if it could be built. `management` is
    needed for the shovel.
    """
    few = (Scenario.CONSUME, Scenario.PUBLISH_ONE)
    c: tuple[Contestant, ...] = (
        ()
        if c_program is None
        else (
            CClient(C, c_program, (*_ALL, *_MOVES)),
            CClient(C50, c_program, (Scenario.CONSUME,), Scenario.CONSUME_50),
            CClient(f"{C}, headers kept", c_program, (Scenario.MOVE_REAL,), keeps_headers=True),
        )
    )
    moving, consuming = (Scenario.MOVE,), (Scenario.CONSUME,)
    failing = (
        Scenario.CONSUME, Scenario.ROUND_TRIPS, Scenario.RETRY, Scenario.FAIL, Scenario.PARK,
    )  # fmt: skip
    return (
        *c,
        PythonClient(REDRIVE, "redrive_client", python, (*moving, Scenario.MOVE_REAL)),
        PythonClient(SHOVEL, "shovel_client", python, moving, management),
        PythonClient(HOPBACK, "hopback_client", python, (*_ALL, Scenario.ROUND_TRIPS)),
        PythonClient(BARE_PUBLISH, "hopback_client", python, (Scenario.PUBLISH_ONE,), "bare"),
        PythonClient(
            f"{HOPBACK}, a task per message", "hopback_client", python, (Scenario.CONSUME,), "task"
        ),
        PythonClient(APPLICATION, "application_client", python, failing),
        PythonClient(METRICS, "application_client", python, consuming, "metrics"),
        PythonClient(AWAITING, "application_client", python, consuming, "await"),
        PythonClient(UNRECORDED, "application_client", python, consuming, "unrecorded"),
        PythonClient(RECORDED, "application_client", python, consuming, "recorded"),
        PythonClient(HARDENED, "application_client", python, (Scenario.RETRY,), "hardened"),
        PythonClient(UVLOOP, "hopback_client", python, _ALL, "uvloop"),
        PythonClient("pika (asyncio)", "pika_client", python),
        PythonClient(
            "pika (asyncio), traced, sampled out", "pika_client", python, consuming, "unrecorded"
        ),
        PythonClient(
            "pika (asyncio), traced, recorded", "pika_client", python, consuming, "recorded"
        ),
        PythonClient("aiormq", "aiormq_client", python),
        PythonClient("aio-pika", "aio_pika_client", python, (*_ALL, *_MOVES, Scenario.ROUND_TRIPS)),
        PythonClient(
            BARE_LOOP, "round_trips_client", python, (Scenario.ROUND_TRIPS,), layout="unfilled"
        ),
        PythonClient("aio-pika, counted", "aio_pika_client", python, consuming, "metrics"),
        PythonClient("aio-pika that awaits", "aio_pika_client", python, consuming, "await"),
        PythonClient(
            "FastStream",
            "faststream_client",
            python,
            tuple(one for one in _ALL if one is not Scenario.RETRY),
        ),
        PythonClient(
            "FastStream with its metrics", "faststream_client", python, consuming, "metrics"
        ),
        PythonClient("kombu", "kombu_client", python, few),
        PythonClient(
            "Dramatiq",
            "dramatiq_client",
            python,
            consuming,
            body=_dramatiq_body(),
            layout="dramatiq",
        ),
    )
