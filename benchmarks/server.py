"""Measure `hopback broker` with the C client: publish with confirm, consume with ack, start and
memory.

    python -m benchmarks.server [--count N] [--runs N] [--four] [--write]

Each figure is the median of several runs of the C client on a new queue, without other clients.
Then four clients run at once, each with its own queue, in turn on `hopback broker` and on RabbitMQ.
`--four` only measures the latter. `--write` writes both results to benchmarks/SERVER.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.harness.rabbitmq import RabbitNode

from benchmarks.environment import ROOT, build_c_client, c_version, processor
from hopback.broker.rabbitmq import RabbitMQ
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE = ROOT / "benchmarks" / "SERVER.md"
_BODY = b"x" * 1024
_RUNS = 5
_GOAL = 10_000
_CLIENTS = 4
_HOPBACK = "hopback broker"
_WORDS = {"publish": "publish and confirm", "consume": "consume and ack"}


_TEXT = """\
# Speed of `hopback broker`

Written by `python -m benchmarks.server --write`. The C client (librabbitmq) publishes {count:,}
persistent messages of 1 KiB with confirms, 1,000 in flight, and then consumes them with a prefetch of
1,000 and single acks. Client and broker share the machine with other processes. The figures are the
median of {runs} runs, with the lowest and the highest. The processor time of the broker hardly depends
on other load: its inverse is the rate of one core.

{table}

The goal is 10,000 messages a second, in each direction alone.

## Four clients at once, compared with RabbitMQ

Four C clients at once, each on a separate queue, {count:,} messages in total. All publish, and
afterwards all consume. The figures are messages per second of the four together, from the start of the
first to the end of the last, including connecting: the median of {runs} runs, with the lowest and the
highest. Both brokers run all the time, and their runs alternate. RabbitMQ writes durable messages to
disk, `hopback broker` keeps all in memory.

{beside}

The goal is 10,000 a second here as well.

{processor}, {cores} cores, {memory} GiB, {system}, Python {python}; hopback {hopback}, librabbitmq {library}.
"""


@contextmanager
def _broker() -> Iterator[tuple[str, subprocess.Popen[str], float]]:
    """Run the installed command and yield its URL, its process and the time it took to start."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "hopback", "broker", "--port", "0", "--no-http"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(2)]
        took = time.monotonic() - begin
        yield lines[1].split()[-1], process, took
    finally:
        process.terminate()
        process.wait()


async def _declare(url: str, name: str, kind: QueueType) -> None:
    connection = await RabbitMQ(url).connect("benchmark")
    channel = await connection.open_channel()
    await channel.delete_queue(name)
    await channel.declare_queue(Queue(name, kind))
    await connection.close()


def _command(program: Path, url: str, scenario: str, queue: str, count: int) -> list[str]:
    address = urlsplit(url)
    place = [str(address.hostname), str(address.port), "/", queue, ""]
    return [str(program), scenario, *place, str(count), "1000", "1000"]


def _run(program: Path, url: str, scenario: str, queue: str, count: int) -> float:
    """Return the messages per second of a client."""
    ran = subprocess.run(
        _command(program, url, scenario, queue, count),
        input=_BODY,
        capture_output=True,
        check=True,
    )
    found = json.loads(ran.stdout)
    return float(found["count"]) / float(found["seconds"])


def _run_four(program: Path, url: str, scenario: str, queues: list[str], count: int) -> float:
    """Return the messages per second of several clients that run at once. Each one has a queue and
    a share of the messages.
    """
    share = count // len(queues)
    with ThreadPoolExecutor(len(queues)) as pool:
        begin = time.monotonic()
        # Each client is a process, so the threads only wait. `list` raises their exceptions.
        list(pool.map(lambda queue: _run(program, url, scenario, queue, share), queues))
        return share * len(queues) / (time.monotonic() - begin)


def _processor_seconds(process: subprocess.Popen[str]) -> float:
    """Return the CPU time of the broker in seconds."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(process: subprocess.Popen[str]) -> int:
    """Return the resident memory of the broker in bytes."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


Figures = dict[str, list[float]]


def measure(program: Path, count: int, runs: int) -> Figures:
    """Return all figures with their values in each run."""
    found: Figures = {}
    for kind in (QueueType.CLASSIC, QueueType.QUORUM):
        with _broker() as (url, process, _):
            before = _resident(process)
            for run in range(runs):
                asyncio.run(_declare(url, "bench", kind))
                for scenario in ("publish", "consume"):
                    used = _processor_seconds(process)
                    rate = _run(program, url, scenario, "bench", count)
                    cost = (_processor_seconds(process) - used) / count * 1e6
                    found.setdefault(f"{kind}, {_WORDS[scenario]}: a second", []).append(rate)
                    found.setdefault(f"{kind}, {_WORDS[scenario]}: µs of processor", []).append(
                        cost
                    )
                    if not run and scenario == "publish":
                        growth = (_resident(process) - before) / count
                        found[f"{kind}: bytes for a message of 1,024"] = [growth]
    found["start: seconds"], found["start: seconds of processor"] = _starts(runs)
    return found


def measure_beside(program: Path, count: int, runs: int) -> dict[str, Figures]:
    """Run four clients at once on both brokers in turn. Returns the figures of each broker with
    their values in each run.
    """
    queues = [f"bench-{number}" for number in range(_CLIENTS)]
    with _broker() as (url_, _, _), RabbitNode() as node:
        version = node.management.call("GET", "/overview")["rabbitmq_version"]
        urls = {_HOPBACK: url_, f"RabbitMQ {version}": node.url}
        found: dict[str, Figures] = {name: {} for name in urls}
        for run in range(runs):
            for kind in (QueueType.CLASSIC, QueueType.QUORUM):
                # The order of the brokers alternates.
                for name, url in list(urls.items())[:: -1 if run % 2 else 1]:
                    for queue in queues:
                        asyncio.run(_declare(url, queue, kind))
                    for scenario, words in _WORDS.items():
                        rate = _run_four(program, url, scenario, queues, count)
                        found[name].setdefault(f"{kind}, {words}", []).append(rate)
    return found


def report_beside(found: dict[str, Figures]) -> str:
    """Return a table with a column for each broker."""
    lines = [f"| messages a second | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for name in found[_HOPBACK]:
        cells = [
            f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
            for rates in (figures[name] for figures in found.values())
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _starts(runs: int) -> tuple[list[float], list[float]]:
    seconds, used = [], []
    for _ in range(runs):
        with _broker() as (_, process, took):
            seconds.append(took)
            used.append(_processor_seconds(process))
    return seconds, used


def report(found: dict[str, list[float]]) -> str:
    """Return a table of the figures with median and range."""
    lines = ["| figure | median | lowest | highest |", "|---|---|---|---|"]
    for name, values in found.items():
        digits = 2 if "seconds" in name else 1 if "µs" in name else 0
        figures = (statistics.median(values), min(values), max(values))
        cells = " | ".join(f"{value:,.{digits}f}" for value in figures)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def page(table: str, beside: str, count: int, runs: int) -> str:
    """Return the page with the figures and the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return _TEXT.format(
        table=table,
        beside=beside,
        runs=runs,
        count=count,
        processor=processor(),
        cores=os.cpu_count(),
        memory=round(memory, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        hopback=metadata.version("hopback"),
        library=c_version(),
    )


def main() -> int:
    """Measure and print the figures. Returns 0 if the goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=_RUNS)
    parser.add_argument("--four", action="store_true", help="only four clients at once")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    program = build_c_client()
    if program is None:
        print("needs gcc and librabbitmq-dev for the C client", file=sys.stderr)
        return 1
    if options.four and options.write:
        parser.error("--write needs both measurements: omit --four")
    table, rates = "", []
    if not options.four:
        found = measure(program, options.count, options.runs)
        rates = [values for name, values in found.items() if name.endswith("a second")]
        table = report(found)
        print(table, end="\n\n")
    together = measure_beside(program, options.count, options.runs)
    beside = report_beside(together)
    print(beside)
    if options.write:
        _PAGE.write_text(page(table, beside, options.count, options.runs))
    rates += together[_HOPBACK].values()
    return 0 if all(statistics.median(values) >= _GOAL for values in rates) else 1


if __name__ == "__main__":
    raise SystemExit(main())
