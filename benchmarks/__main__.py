"""`python -m benchmarks`: start a node, measure, write RESULTS.md."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from tests.harness.rabbitmq import RabbitNode

from benchmarks.contestants import contestants
from benchmarks.environment import ROOT, WORK, build_c_client, describe, peers_python
from benchmarks.goals import judge
from benchmarks.grouping import group
from benchmarks.memory import endure
from benchmarks.report import render
from benchmarks.rounds import Results, Settings, play
from benchmarks.stage import Stage
from benchmarks.workload import Scenario

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.contestants import Contestant

_MILLION = 1_000_000
_GROUPED = 100_000
_PLUGINS = ("rabbitmq_management", "rabbitmq_shovel")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count (default 7)")
    parser.add_argument("--seconds", type=float, default=2.0, help="aim of one run (default 2)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of short runs; prints only")
    parser.add_argument("--only", action="append", default=[], help="only clients named like this")
    parser.add_argument("--scenario", action="append", default=[], choices=list(Scenario))
    parser.add_argument("--queues", action="append", default=[], choices=["classic", "quorum"])
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="skip the million")
    parser.add_argument("--memory-only", action="store_true", help="only the million messages")
    parser.add_argument(
        "--messages", type=int, default=_MILLION, help="how many the memory run has"
    )
    parser.add_argument("--title", default="Benchmark results", help="of the page")
    parser.add_argument("--output", default=str(ROOT / "benchmarks" / "RESULTS.md"))
    return parser.parse_args()


def _settings(chosen: argparse.Namespace) -> Settings:
    settings = Settings(rounds=chosen.rounds, seconds=chosen.seconds)
    if chosen.quick:
        settings = replace(settings, rounds=2, seconds=0.4, least=500)
    if chosen.scenario:
        settings = replace(settings, scenarios=tuple(map(Scenario, chosen.scenario)))
    if chosen.queues:
        settings = replace(settings, queue_types=tuple(chosen.queues))
    return settings


def _chosen(everyone: Sequence[Contestant], only: list[str]) -> list[Contestant]:
    wanted = [part.lower() for part in only]
    return [
        one for one in everyone if not wanted or any(part in one.name.lower() for part in wanted)
    ]


def _profiles(
    stage: Stage, results: Results, named: Mapping[str, Contestant]
) -> dict[tuple[str, Scenario, str], str]:
    """A profile of every row of ours that missed a goal."""
    found: dict[tuple[str, Scenario, str], str] = {}
    missed = {
        (v.queue_type, v.goal.scenario, v.goal.subject)
        for v in judge(results)
        if v.reached is False
    }
    for queue_type, scenario, subject in sorted(missed):
        ours = named[subject]
        job = replace(stage.job(ours, scenario, queue_type, 10_000), profile=True)
        found[queue_type, scenario, subject] = ours.run(job).profile
    return found


def _measure(chosen: argparse.Namespace, node: RabbitNode, python: Path) -> int:
    program = build_c_client()
    if program is None:
        print("no C compiler or no librabbitmq: the C rows are left out", file=sys.stderr)
    everyone = contestants(python, program, node.management_url)
    named = {one.name: one for one in everyone}
    filler = everyone[0] if program else named["pika (asyncio)"]
    node.management.create_vhost("bench")
    stage = Stage("127.0.0.1", node.amqp_port, "bench", filler)
    settings = _settings(chosen)
    results = Results()
    if not chosen.memory_only:
        results = play(stage, _chosen(everyone, chosen.only), settings)
    memory = endure(stage, python, chosen.messages) if chosen.memory and not chosen.quick else None
    profiles = _profiles(stage, results, named)
    broker = str(node.management.call("GET", "/overview")["rabbitmq_version"])
    page = render(
        results,
        settings,
        describe(python, broker),
        memory,
        profiles,
        title=chosen.title,
        command=_command(chosen),
    )
    if memory is not None:
        page += "\n".join(group(stage, python, _GROUPED).lines())
    _keep(results, page, chosen)
    return 1 if results.failures else 0


def _command(chosen: argparse.Namespace) -> str:
    """What was asked for, as far as the figures depend on it."""
    asked = [("--scenario", each) for each in chosen.scenario]
    asked += [("--queues", each) for each in chosen.queues]
    asked += [("--only", each) for each in chosen.only]
    words = [word for pair in asked for word in pair]
    return shlex.join(["python", "-m", "benchmarks", *words]) if words else "make bench"


def _keep(results: Results, page: str, chosen: argparse.Namespace) -> None:
    raw = [
        {**asdict(case), "runs": [run and asdict(run) for run in runs]}
        for case, runs in results.runs.items()
    ]
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "runs.json").write_text(json.dumps(raw, indent=1))
    if chosen.quick or chosen.memory_only:
        print(page)
        return
    with open(chosen.output, "w", encoding="utf-8") as file:
        file.write(page)
    print(f"wrote {chosen.output}", file=sys.stderr)


def main() -> int:
    """Run everything on a node of our own."""
    chosen = _arguments()
    python = peers_python()
    with RabbitNode(plugins=_PLUGINS) as node:
        return _measure(chosen, node, python)


if __name__ == "__main__":
    raise SystemExit(main())
