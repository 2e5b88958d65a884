"""Compare rehearsals of three scenarios with measurements on RabbitMQ in real time.

Run it with `python -m benchmarks.rehearse_validation [SUITE]`. A suite is `host` (the installed
RabbitMQ), `trixie` or `forky`. It writes `benchmarks/REHEARSE.md` and a picture for each scenario.
The handler sleeps and fails as the scenario specifies. The broker, the network, the runtime and the
clock are real.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.installation import HOST
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import installations

from hopback import App, Retry
from hopback.broker.port import count
from hopback.broker.rabbitmq import RabbitMQ
from hopback.designs.recommended import recommended
from hopback.message import Message, Properties
from hopback.rehearse import EngineKind, Load, Outage, RateStep, Scenario, rehearse
from hopback.rehearse.chart import Chart, ChartLine, svg_document
from hopback.rehearse.quantities import show_count
from hopback.runtime.service import Service
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.broker.port import Channel
    from hopback.rehearse import Forecast

_FOLDER = Path(__file__).parent
_PICTURES = _FOLDER.parent / "docs" / "pictures"
_TIERS_MS = (5_000, 15_000)
"""The delays in ms. They are short, so that a scenario takes a minute and a half."""
_SAMPLE_S = 1.0
"""Seconds between two measurements of all queues, which use passive declares."""


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario with its name and its purpose."""

    name: str
    shows: str
    load: Load
    outages: tuple[Outage, ...]
    length_s: float = 90.0


_CASES = (
    Case(
        "short-outage",
        "all runs fail for 25 s, longer than both waits: some messages are parked, the others succeed later",
        Load("orders", (RateStep(0.0, 40.0),), handler_s=0.05, concurrency=10),
        (Outage(15.0, 25.0),),
    ),
    Case(
        "overload",
        "60 messages a second for 45 s against consumers that do 40, then 10: a queue grows and empties",
        Load("orders", (RateStep(0.0, 60.0), RateStep(45.0, 10.0)), handler_s=0.1, concurrency=4),
        (),
    ),
    Case(
        "poison-storm",
        "from the start 30 % of all messages fail in every run, and 10 % of runs fail at random",
        Load("orders", (RateStep(0.0, 40.0),), handler_s=0.03, concurrency=8, poison=0.3, fail=0.1),
        (),
    ),
)


@dataclass(slots=True)
class Observed:
    """The times since the start, the depth of each queue at these times, and totals."""

    times: list[float]
    depths: dict[str, list[float]]
    published: int = 0
    runs: int = 0


async def _publish(channel: Channel, case: Case, begin: float, found: Observed) -> None:
    """Publish messages with confirms at the rate of the load. If a message is late, it is published
    immediately.
    """
    chance = random.Random(1).random
    properties, due, tasks = Properties(delivery_mode=2), 0.0, set()
    while due < case.length_s:
        await asyncio.sleep(max(0.0, begin + due - time.monotonic()))
        body = b"poison" if chance() < case.load.poison else b"plain"
        task = asyncio.ensure_future(channel.publish(Message("", "orders", body, properties)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        found.published += 1
        due += 1 / case.load.rate_at(due)
    await asyncio.gather(*tasks)


async def _watch(channel: Channel, case: Case, begin: float, found: Observed) -> None:
    """Count the ready messages of all queues once per second."""
    for number in range(int(case.length_s / _SAMPLE_S) + 1):
        await asyncio.sleep(max(0.0, begin + number * _SAMPLE_S - time.monotonic()))
        found.times.append(time.monotonic() - begin)
        for queue, depth in found.depths.items():
            depth.append(float((await count(channel, queue)).messages))


async def _measure(node: RabbitNode, case: Case) -> Observed:
    topology = recommended("orders", tiers_ms=_TIERS_MS)
    load, broker = case.load, RabbitMQ(node.url)
    app = App("validation", topology=topology)
    found = Observed([], {queue.name: [] for queue in topology.queues})
    chance = random.Random(2).random
    begin = math.inf

    @app.handler("orders", concurrency=load.concurrency)
    async def handle(body: bytes) -> Retry | None:
        at = time.monotonic() - begin
        down = any(one.start_s <= at < one.end_s for one in case.outages)
        failed = down or body == b"poison" or chance() < load.fail
        await asyncio.sleep(load.handler_s)
        found.runs += 1
        return Retry("planned failure") if failed else None

    service = Service(app, broker)
    service_task = asyncio.create_task(service.run())
    await service.ready.wait()
    connection = await broker.connect("validation")
    begin = time.monotonic() + 0.5
    channel = await connection.open_channel()
    try:
        await asyncio.gather(
            _publish(channel, case, begin, found),
            _watch(await connection.open_channel(), case, begin, found),
        )
    finally:
        service_task.cancel()
        await asyncio.gather(service_task, return_exceptions=True)
        await connection.close()
    return found


def _predict(case: Case, version: BrokerVersion, engine: EngineKind) -> Forecast:
    scenario = Scenario(
        (case.load,),
        duration_s=case.length_s,
        outages=case.outages,
        samples=int(case.length_s / _SAMPLE_S),
        seed=1,
        version=version,
        name=case.name,
    )
    return rehearse(recommended("orders", tiers_ms=_TIERS_MS), scenario, engine)


def _ready(forecast: Forecast, case: Case, queue: str) -> list[float]:
    """Return the predicted depths without unacked messages, like those of a passive declare."""
    held = case.load.window if queue == "orders" else 0
    return [max(0.0, depth - held) for depth in forecast.queue(queue).depth]


def _row(name: str, measured: list[float], predicted: list[float]) -> tuple[str, str]:
    """Return the measured peak, the predicted peak, and the mean difference relative to the
    measured peak.
    """
    peak = max(*measured, 1.0)
    error = sum(abs(a - b) for a, b in zip(measured, predicted, strict=True)) / len(measured)
    return name, f"{show_count(max(measured))} | {show_count(max(predicted))} | {error / peak:.1%}"


def _report(case: Case, version: BrokerVersion, found: Observed) -> str:
    fluid, exact = (_predict(case, version, kind) for kind in EngineKind)
    charts, rows = [], []
    for queue, measured in found.depths.items():
        one, other = _ready(fluid, case, queue), _ready(exact, case, queue)
        lines = (
            ChartLine("fluid", one),
            ChartLine("exact", other),
            ChartLine("RabbitMQ", measured),
        )
        title = f"{queue}: ready messages"
        charts.append(Chart(title, lines, show_count, fluid.times, case.outages))
        _, by_fluid = _row(queue, measured, one)
        _, by_exact = _row(queue, measured, other)
        rows.append(f"| {queue} | {by_fluid} | {' | '.join(by_exact.split(' | ')[1:])} |")
    picture = _PICTURES / f"rehearsal-{case.name}.svg"
    picture.write_text(svg_document(f"{case.name} on RabbitMQ {version}", charts), encoding="utf-8")
    station, exact_station = fluid.stations[0], exact.stations[0]
    return "\n".join(
        [
            f"## {case.name}\n",
            f"{case.shows[0].upper()}{case.shows[1:]}. Published {found.published:,}"
            f" (predicted {show_count(station.published)}), runs {found.runs:,} (fluid"
            f" {show_count(station.run_count)}, exact {show_count(exact_station.run_count)}).\n",
            "| queue | peak measured | peak fluid | error fluid | peak exact | error exact |",
            "|---|---|---|---|---|---|",
            *rows,
            f"\n![Predicted and measured](../docs/pictures/{picture.name})\n",
        ]
    )


def main(suite: str) -> None:
    """Measure each case on a new node and write the page."""
    installation = HOST if suite == "host" else installations()[suite]
    parts = []
    for case in _CASES:
        with RabbitNode(installation) as node:
            reported = node.management.call("GET", "/overview")["rabbitmq_version"]
            version = BrokerVersion.parse(reported)
            found = asyncio.run(_measure(node, case))
        parts.append(_report(case, version, found))
        print(parts[-1], flush=True)
    today = datetime.now(tz=UTC).date()
    head = (
        "# Rehearsals against a real RabbitMQ\n\n"
        f"Written by `python -m benchmarks.rehearse_validation {suite}` on {today}, RabbitMQ {reported},\n"
        "one node on a shared machine of two cores, in real time: the recommended design with waits of 5 s\n"
        "and 15 s. Passive declares count the ready messages of every queue once a second. Predicted depths\n"
        "exclude the messages that a consumer may hold (its prefetch). The error is the mean difference of\n"
        "the two curves relative to the measured peak.\n"
    )
    page = _FOLDER / "REHEARSE.md"
    page.write_text("\n".join([head, *parts]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "host")
