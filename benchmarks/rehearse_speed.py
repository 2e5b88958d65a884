"""How long a rehearsal takes: a day of 50 queues by the fluid model, a million lives by the exact engine.

Run from the root: `python -m benchmarks.rehearse_speed`. Writes `benchmarks/REHEARSE_SPEED.md`. Processor
time is what counts: it hardly depends on what else the machine does.
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
    """Fifty queues whose rates rise and fall over the day, hour by hour, and an outage at noon."""
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


def _measured(name: str, fail: float) -> dict[str, float]:
    """One rehearsal in this process: published, runs, seconds, and the most memory of the process."""
    play: Callable[[float], Forecast] = {"fluid": _fluid, "exact": _exact}[name]
    begun, used = time.monotonic(), time.process_time()
    found = play(fail)
    return {
        "published": sum(one.published for one in found.stations),
        "runs": sum(one.run_count for one in found.stations),
        "cpu": time.process_time() - used,
        "wall": time.monotonic() - begun,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measure each in a process of its own, and write the page."""
    rows = []
    alone = multiprocessing.get_context("spawn")
    for name, fail in (("fluid", 0.0), ("fluid", 0.05), ("exact", 0.0), ("exact", 0.05)):
        with alone.Pool(1) as pool:
            found = pool.apply(_measured, (name, fail))
        print(name, fail, json.dumps(found), flush=True)
        rows.append(
            f"| {name} | {fail:.0%} | {found['published']:,.0f} | {found['runs']:,.0f} |"
            f" {found['cpu']:.1f} s | {found['wall']:.1f} s | {found['memory']:.0f} MiB |"
        )
    today = datetime.now(tz=UTC).date()
    text = (
        "# The speed of rehearsals\n\n"
        f"Written by `python -m benchmarks.rehearse_speed` on {today}, Python {sys.version.split()[0]},\n"
        "one core of a shared machine that had other work too: the time by the clock says how much.\n"
        "**fluid** is a day of 50 queues with an outage of 20 minutes at noon, **exact** a million lives\n"
        "on the recommended design at 500 a second. Memory is that of the whole process, Python and all\n"
        "modules included.\n\n"
        "| engine | runs that fail | published | runs | processor | clock | memory at most |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    _PAGE.write_text(text + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
