"""Measure the duration of rehearsals: a day of 50 queues with the fluid model, and a million
messages with the exact engine.

Run it with `python -m benchmarks.rehearse_speed`. It writes `benchmarks/REHEARSE_SPEED.md`. The CPU
time should be compared, because it hardly depends on the load of the machine.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import resource
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hopback.designs.recommended import recommended
from hopback.rehearse import EngineKind, Load, Outage, RateStep, Scenario, rehearse
from hopback.topology.document import from_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.rehearse import Forecast
    from hopback.topology.model import Topology

_PAGE = Path(__file__).with_name("REHEARSE_SPEED.md")
_DAY_S = 86_400.0
_QUEUES = tuple(f"q{number:02}" for number in range(50))
_LIVES, _RATE = 1_000_000, 500.0


def _day(fail: float) -> tuple[Topology, Scenario]:
    """Return fifty queues with rates that change every hour, and an outage at noon."""
    waits = [{"delay": wait} for wait in ("30s", "5m", "30m")]
    topology = from_document(
        {"name": "day", "queues": {name: {"retry": waits} for name in _QUEUES}}
    )
    hours = [
        RateStep(3600.0 * hour, 220 + 150 * math.sin(hour / 24 * math.tau)) for hour in range(24)
    ]
    loads = tuple(
        Load(name, tuple(hours), fail=fail, handler_s=0.02, processes=4, concurrency=10)
        for name in _QUEUES
    )
    return topology, Scenario(loads, duration_s=_DAY_S, outages=(Outage(_DAY_S / 2, 1200.0),))


def _fluid(fail: float) -> Forecast:
    return rehearse(*_day(fail))


def _exact(fail: float) -> Forecast:
    load = Load("orders", (RateStep(0.0, _RATE),), fail=fail, processes=4, concurrency=20)
    scenario = Scenario((load,), duration_s=_LIVES / _RATE)
    return rehearse(recommended("orders"), scenario, EngineKind.EXACT)


def _measure(name: str, fail: float) -> dict[str, float]:
    """Run a rehearsal in this process. Returns the number of messages and runs, the seconds and the
    maximum memory.
    """
    run: Callable[[float], Forecast] = {"fluid": _fluid, "exact": _exact}[name]
    begun, used = time.monotonic(), time.process_time()
    found = run(fail)
    return {
        "published": sum(one.published for one in found.stations),
        "runs": sum(one.run_count for one in found.stations),
        "cpu": time.process_time() - used,
        "wall": time.monotonic() - begun,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measure each rehearsal in its own process and write the page."""
    rows = []
    context = multiprocessing.get_context("spawn")
    for name, fail in (("fluid", 0.0), ("fluid", 0.05), ("exact", 0.0), ("exact", 0.05)):
        with context.Pool(1) as pool:
            found = pool.apply(_measure, (name, fail))
        print(name, fail, json.dumps(found), flush=True)
        rows.append(
            f"| {name} | {fail:.0%} | {found['published']:,.0f} | {found['runs']:,.0f} |"
            f" {found['cpu']:.1f} s | {found['wall']:.1f} s | {found['memory']:.0f} MiB |"
        )
    today = datetime.now(tz=UTC).date()
    text = (
        "# The speed of rehearsals\n\n"
        f"Written by `python -m benchmarks.rehearse_speed` on {today}, Python {sys.version.split()[0]},\n"
        "one core of a shared machine with other load: compare elapsed and processor time. **fluid** is\n"
        "a day of 50 queues with an outage of 20 minutes at noon, **exact** a million messages on the\n"
        "recommended design at 500 a second. Memory is that of the whole process, including Python and all\n"
        "modules.\n\n"
        "| engine | failing runs | published | runs | processor | elapsed | maximum memory |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    _PAGE.write_text(text + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
