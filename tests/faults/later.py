"""Delayed messages, periodic messages and requests while processes and brokers are killed.

`python -m tests.faults.later 3.10 4.0 4.3` runs on these versions. `virtual` runs 100,000 delayed
messages in virtual time. The results are stored in `.work/faults/`, and the page
`docs/explanation/lateness.md` is written from them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopback import App, NoReply, RabbitMQ, RequestClient, Service, ServiceOptions
from hopback.broker.embedded import EmbeddedBroker, run_virtual
from hopback.broker.supervise import Backoff
from hopback.errors import BrokerError
from hopback.runtime import Environment
from hopback.testing import AppTest
from hopback.version import BrokerVersion
from tests.faults.later_process import PERIOD_S
from tests.faults.site import PRODUCTION, installation_of, version_of
from tests.harness.rabbitmq import RabbitNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["LaterResult", "VirtualResult", "on_broker", "quantiles", "virtually"]

_ROOT = Path(__file__).resolve().parents[2]
_KEPT = _ROOT / ".work" / "faults" / "later.json"
_PAGE = _ROOT / "docs" / "explanation" / "lateness.md"
_QUANTILES = (0.5, 0.9, 0.99, 1.0)
_PROCESSES = 3
_DAYS_3 = 3 * 86_400


def quantiles(values: Sequence[float]) -> list[float]:
    """Return the median, the 90 % and 99 % quantiles and the maximum."""
    ordered = sorted(values) or [0.0]
    last = len(ordered) - 1
    return [round(ordered[min(last, int(share * len(ordered)))], 3) for share in _QUANTILES]


@dataclass(frozen=True, slots=True)
class LaterResult:
    """The results of a run on a broker."""

    broker: str
    hold_back_s: float
    messages: int
    longest_s: float
    broker_kills: int
    process_kills: int
    lost: int
    early: int
    twice: int
    late: list[float]
    periodic: int
    periodic_missing: int
    periodic_twice: int
    asked: int
    answered: int
    unanswered: int
    wrong: int
    late_answers: int


class _Run:
    """The processes of the application. They can be killed and replaced."""

    def __init__(self, node: RabbitNode, folder: Path, seed: int) -> None:
        self._node = node
        self._folder = folder
        self._chance = random.Random(seed)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.process_kills = 0
        self.broker_kills = 0

    def start_process(self) -> None:
        self._started += 1
        path = self._folder / f"{self._started}.notes"
        command = [sys.executable, "-m", "tests.faults.later_process", self._node.url, str(path)]
        with (self._folder / f"{self._started}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, cwd=_ROOT, stdout=log, stderr=log))

    def kill_process(self) -> None:
        """Kill a random process with SIGKILL and start another one."""
        victim = self._processes.pop(self._chance.randrange(len(self._processes)))
        victim.kill()
        victim.wait()
        self.process_kills += 1
        self.start_process()

    async def kill_broker(self) -> None:
        """Kill the broker and start it again."""
        await asyncio.to_thread(self._node.kill)
        self.broker_kills += 1
        await asyncio.to_thread(self._node.start)

    def end(self) -> None:
        """Kill all processes that are running."""
        for process in self._processes:
            process.kill()
            process.wait()

    def notes(self) -> Iterator[tuple[str, str, float]]:
        """Yield the records that the handlers have written: kind, id and time."""
        for path in self._folder.glob("*.notes"):
            for line in path.read_text().splitlines():
                kind, name, moment = line.split(" ")
                yield kind, name, float(moment)


@dataclass(slots=True)
class _Questions:
    """Sends requests one after another and counts their results."""

    asked: int = 0
    answered: int = 0
    unanswered: int = 0
    wrong: int = 0
    late: int = 0

    async def ask(self, url: str, over: asyncio.Event) -> None:
        """Send requests until `over` is set, and count wrong replies."""
        client = RequestClient(RabbitMQ(url), backoff=Backoff(first=0.2, most=1.0))
        while not over.is_set():
            number = self.asked
            self.asked += 1
            try:
                found = await client.request("later.ask", number, timeout=2)
            except (NoReply, BrokerError):
                self.unanswered += 1
            else:
                self.answered += 1
                self.wrong += found != number * number
            await asyncio.sleep(0.05)
        self.late = client.late
        await client.close()


async def on_broker(
    node: RabbitNode,
    folder: Path,
    *,
    messages: int,
    longest_s: float,
    kills: int,
    pause_s: float,
    seed: int = 1,
    patience_s: float = 600.0,
) -> LaterResult:
    """Publish messages with delays of up to `longest_s`, and kill a process or the broker every
    `pause_s` seconds.
    """
    run = _Run(node, folder, seed)
    chance = random.Random(seed)
    over = asyncio.Event()
    questions = _Questions()
    app = App("publishing")
    app.delays("1h")
    app.queue("later.work", retry=["1s"])
    environment = Environment(reconnect=Backoff(first=0.2, most=1.0))
    service = Service(
        app, RabbitMQ(node.url), options=ServiceOptions(queues=()), environment=environment
    )
    serving = asyncio.create_task(service.run())
    due: dict[str, tuple[float, float]] = {}
    try:
        await asyncio.wait_for(service.ready.wait(), 60)
        for _ in range(_PROCESSES):
            run.start_process()
        await _until(lambda: any(kind == "tick" for kind, *_ in run.notes()), 120)
        asking = asyncio.create_task(questions.ask(node.url, over))
        publishing = asyncio.create_task(_publish(app, due, messages, longest_s, chance))
        for number in range(kills):
            await asyncio.sleep(pause_s)
            if number % 3 == 2:
                await run.kill_broker()
            else:
                run.kill_process()
        await publishing
        await _until(
            lambda: set(due) <= {name for kind, name, _ in run.notes() if kind == "work"},
            patience_s,
        )
        await asyncio.sleep(2 * PERIOD_S)
        over.set()
        await asking
    finally:
        over.set()
        run.end()
        service.stop()
        await serving
    return _count_results(
        run, due, questions, version_of(node), node.timings.dead_letter_retry_ms / 1000, longest_s
    )


def _count_results(
    run: _Run,
    due: dict[str, tuple[float, float]],
    questions: _Questions,
    broker: str,
    hold_back_s: float,
    longest_s: float,
) -> LaterResult:
    came: dict[str, list[float]] = {}
    periodic: list[int] = []
    for kind, name, moment in run.notes():
        if kind == "work":
            came.setdefault(name, []).append(moment)
        else:
            periodic.append(int(datetime.fromisoformat(name.partition("@")[2]).timestamp()))
    early = [name for name, (first, _) in due.items() if name in came and min(came[name]) < first]
    late = [max(0.0, min(came[name]) - last) for name, (_, last) in due.items() if name in came]
    wanted = set(range(min(periodic), max(periodic) + 1, PERIOD_S))
    return LaterResult(
        broker=broker,
        hold_back_s=hold_back_s,
        messages=len(due),
        longest_s=longest_s,
        broker_kills=run.broker_kills,
        process_kills=run.process_kills,
        lost=len(set(due) - set(came)),
        early=len(early),
        twice=sum(len(moments) - 1 for moments in came.values()),
        late=quantiles(late),
        periodic=len(wanted),
        periodic_missing=len(wanted - set(periodic)),
        periodic_twice=len(periodic) - len(set(periodic)),
        asked=questions.asked,
        answered=questions.answered,
        unanswered=questions.unanswered,
        wrong=questions.wrong,
        late_answers=questions.late,
    )


async def _publish(
    app: App,
    due: dict[str, tuple[float, float]],
    messages: int,
    longest_s: float,
    chance: random.Random,
) -> None:
    """Publish messages, and repeat each publish until it is confirmed.

    If an earlier attempt has been stored as well, the message arrives twice.
    """
    turns = asyncio.Semaphore(50)

    async def one(number: int, delay: float) -> None:
        name, first = f"m-{number}", 0.0
        async with turns:
            while True:
                last = time.time() + delay
                first = first or last
                try:
                    await app.publish("later.work", {"id": name}, delay=delay, message_id=name)
                except BrokerError:
                    await asyncio.sleep(0.2)
                else:
                    due[name] = (first, last)
                    return

    async with asyncio.TaskGroup() as group:
        for number in range(messages):
            group.create_task(one(number, chance.uniform(1, longest_s)))
            if number % 50 == 0:
                await asyncio.sleep(0.05)


async def _until(fulfilled: Any, seconds: float) -> None:
    """Wait until the condition is true, or until the time is over. Missing messages are counted
    afterwards.
    """
    ends = time.monotonic() + seconds
    while not fulfilled() and time.monotonic() < ends:  # noqa: ASYNC110 - files do not signal anything
        await asyncio.sleep(0.5)


@dataclass(frozen=True, slots=True)
class VirtualResult:
    """The results of a run in virtual time."""

    messages: int
    broker_restarts: int
    cuts: int
    lost: int
    early: int
    twice: int
    late: list[float]


def virtually(
    messages: int,
    *,
    longest_s: float = _DAYS_3,
    faults: int = 200,
    seed: int = 1,
    version: str = "3.10",
) -> VirtualResult:
    """Run messages with delays of up to three days on the embedded broker, while it restarts and
    connections are cut.
    """
    return run_virtual(_virtually(messages, longest_s, faults, seed, version))


async def _virtually(
    messages: int, longest_s: float, faults: int, seed: int, version: str
) -> VirtualResult:
    chance = random.Random(seed)
    time_now = asyncio.get_running_loop().time
    came: dict[int, list[float]] = {}
    due: dict[int, tuple[float, float]] = {}
    app = App("later")
    app.delays("3d")

    @app.handler("work", retry=["1s"], concurrency=100)
    async def work(number: int) -> None:
        came.setdefault(number, []).append(time_now())

    async def publish(number: int) -> None:
        delay, first = chance.uniform(1, longest_s), 0.0
        await asyncio.sleep(chance.uniform(0, 60))
        while True:
            last = time_now() + delay
            first = first or last
            try:
                await app.publish("work", number, delay=delay, message_id=str(number))
            except BrokerError:
                await asyncio.sleep(1)
            else:
                due[number] = (first, last)
                return

    restarts = cuts = 0
    broker = EmbeddedBroker(version=BrokerVersion.parse(version), seed=seed, window=10_000)
    async with AppTest(app, broker=broker):
        publishing = asyncio.gather(*(publish(number) for number in range(messages)))
        for number in range(faults):
            await asyncio.sleep(chance.uniform(0, 2 * longest_s / faults))
            if number % 4 == 0:
                broker.restart()
                restarts += 1
            else:
                broker.cut(buffered=chance.random() < 0.5)
                cuts += 1
        await publishing
        await asyncio.sleep(max(last for _, last in due.values()) + 600 - time_now())
    early = sum(min(came[one]) < first for one, (first, _) in due.items() if one in came)
    late = [max(0.0, min(came[one]) - last) for one, (_, last) in due.items() if one in came]
    twice = sum(len(moments) - 1 for moments in came.values())
    lost = len(set(due) - set(came))
    return VirtualResult(messages, restarts, cuts, lost, early, twice, quantiles(late))


_MARKED = re.compile(r"(<!-- table: lateness -->\n).*?(<!-- end -->)", re.DOTALL)


def _page(kept: dict[str, Any]) -> None:
    """Write the tables of the page."""
    real = [LaterResult(**row) for name, row in sorted(kept.items()) if name != "virtual"]
    lines = []
    if "virtual" in kept:
        found = VirtualResult(**kept["virtual"])
        lines += [
            f"In virtual time, on the embedded broker: **{found.messages:,} messages** delayed by 1 s to"
            f" 3 days, {found.broker_restarts} restarts of the broker and {found.cuts} cut connections:"
            f" **{found.lost} lost, {found.early} early**, {found.twice} came twice."
            f" Late (median, 90 %, 99 %, most): {_shown(found.late)}.",
            "",
        ]
    lines += _table(
        ("broker", "held back for", "delayed messages", "kills of the broker", "kills of processes",
         "lost", "early", "twice", "late: median, 90 %, 99 %, most"),
        (
            (one.broker, f"{one.hold_back_s:g} s", f"{one.messages:,}, 1 s to {one.longest_s:g} s",
             one.broker_kills, one.process_kills, one.lost, one.early, one.twice, _shown(one.late))
            for one in real
        ),
    )  # fmt: skip
    lines += ["", *_table(
        ("broker", "periodic messages due", "missing", "sent twice", "requests", "answered",
         "no reply in 2 s", "wrong answers", "answers too late"),
        (
            (one.broker, one.periodic, one.periodic_missing, one.periodic_twice, one.asked, one.answered,
             one.unanswered, one.wrong, one.late_answers)
            for one in real
        ),
    )]  # fmt: skip
    text = _PAGE.read_text()
    table = "\n".join(lines) + "\n"
    _PAGE.write_text(_MARKED.sub(lambda found: found[1] + table + found[2], text))


def _shown(late: list[float]) -> str:
    return ", ".join(f"{value:.2f} s" for value in late)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    shown = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(str, row))} |" for row in shown]


def main() -> int:
    """Run on the given brokers, store the results and write the page.

    Returns 1 if a message was lost or too early.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.faults.later", description=__doc__)
    parser.add_argument("where", nargs="+", choices=["3.10", "4.0", "4.3", "virtual"])
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--virtual", type=int, default=100_000)
    parser.add_argument("--longest", type=float, default=60.0, help="seconds")
    parser.add_argument("--kills", type=int, default=9)
    parser.add_argument("--pause", type=float, default=8.0, help="seconds between kills")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # connections are lost constantly
    kept: dict[str, Any] = json.loads(_KEPT.read_text()) if _KEPT.exists() else {}
    broken = False
    for where in options.where:
        found: LaterResult | VirtualResult
        if where == "virtual":
            found = virtually(options.virtual, seed=options.seed)
        else:
            node = RabbitNode(installation=installation_of(where), timings=PRODUCTION)
            with node, tempfile.TemporaryDirectory() as folder:
                found = asyncio.run(
                    on_broker(
                        node,
                        Path(folder),
                        messages=options.messages,
                        longest_s=options.longest,
                        kills=options.kills,
                        pause_s=options.pause,
                        seed=options.seed,
                    )
                )
        print(found, flush=True)  # noqa: T201 - a program for people
        broken |= bool(found.lost or found.early)
        kept[where] = asdict(found)
        _KEPT.parent.mkdir(parents=True, exist_ok=True)
        _KEPT.write_text(json.dumps(kept, indent=1))
    if os.access(_PAGE, os.W_OK):
        _page(kept)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
