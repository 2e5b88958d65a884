"""Measure Hopback and its peers, store the results and write RESULTS.md: `python -m benchmarks`.

By default, everything is measured on the RabbitMQ of this machine. `--section` only measures some
sections, and the page keeps the others. `--brokers 4.0,4.3` measures on these versions instead (see
`tests.harness.versions`). `--main` only measures the rows that depend most on the broker.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.harness import versions
from tests.harness.installation import HOST
from tests.harness.rabbitmq import RabbitNode

from benchmarks.broker_setup import BrokerSetup
from benchmarks.contestants import APPLICATION, HOPBACK, METRICS, REDRIVE, C, contestants
from benchmarks.environment import build_c_client, describe, peers_python
from benchmarks.goals import judge, undecided
from benchmarks.grouping import group
from benchmarks.measured_sections import INSTALLED, Measurements, Section, stamp_now
from benchmarks.memory import measure_memory
from benchmarks.report import keep, section_text
from benchmarks.rounds import Settings, run_rounds
from benchmarks.workload import Scenario

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.contestants import Contestant
    from benchmarks.measured_sections import Stamp

_PLUGINS = ("rabbitmq_management", "rabbitmq_shovel")
_SCENARIOS = (
    Scenario.CONSUME, Scenario.ROUND_TRIPS, Scenario.PUBLISH, Scenario.PUBLISH_ONE, Scenario.MOVE,
    Scenario.MOVE_REAL, Scenario.RETRY, Scenario.FAIL, Scenario.PARK,
)  # fmt: skip
_MEMORY, _GROUPING = "memory", "grouping"
_OVERHEAD_S = 2.0
"""Seconds to create and fill a queue, start a process, wait for the last acks, count and calibrate.
"""
_MAIN_SCENARIOS = (
    Scenario.CONSUME,
    Scenario.PUBLISH,
    Scenario.MOVE,
    Scenario.MOVE_REAL,
    Scenario.RETRY,
)
_MAIN_CLIENTS = frozenset({C, HOPBACK, APPLICATION, METRICS, REDRIVE, "aio-pika", "FastStream"})
"""The rows of the peers, and those that depend on the version of the broker."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="maximum number of rounds (default 5)"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="target duration of one run (default 1.5)"
    )
    parser.add_argument("--quick", action="store_true", help="2 rounds of short runs; prints only")
    parser.add_argument(
        "--section", action="append", default=[], choices=[*_SCENARIOS, _MEMORY, _GROUPING],
        help="only these sections; the page keeps the others",
    )  # fmt: skip
    parser.add_argument("--queues", action="append", default=[], choices=["classic", "quorum"])
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="only clients with this in their name; prints only",
    )
    parser.add_argument(
        "--brokers", default="", metavar="SERIES",
        help=f"comma-separated, of {', '.join(versions.SUITES.values())} instead of the installed one",
    )  # fmt: skip
    parser.add_argument("--main", action="store_true", help="only the main rows")
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="messages of the memory run"
    )
    parser.add_argument("--grouped", type=int, default=100_000, help="messages of the grouping run")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    options = parser.parse_args()
    options.series = [each.strip() for each in options.brokers.split(",") if each.strip()]
    unknown = set(options.series) - set(versions.SUITES.values())
    if unknown:
        known = ", ".join(versions.SUITES.values())
        parser.error(f"expected brokers among {known}, got {', '.join(sorted(unknown))}")
    return options


class _Run:
    """The measurements of one run of the command."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._chosen = chosen
        self._prints_only = bool(chosen.quick or chosen.only)
        self._settings = Settings(rounds=chosen.rounds, seconds=chosen.seconds)
        if chosen.quick:
            self._settings = replace(self._settings, rounds=2, fewest=2, seconds=0.4, least=500)
        self._python = peers_python()
        self._program = build_c_client()
        if self._program is None:
            print("no C compiler or no librabbitmq: the C rows are skipped", file=sys.stderr)
        self._failed = False

    def on(self, series: str) -> bool:
        """Measure on a broker. Returns True if all clients succeeded."""
        suites = {known: suite for suite, known in versions.SUITES.items()}
        installation = HOST if series == INSTALLED else versions.build(suites[series])
        with RabbitNode(installation=installation, plugins=_PLUGINS) as node:
            everyone = contestants(self._python, self._program, node.management_url)
            filler = (
                everyone[0]
                if self._program
                else {one.name: one for one in everyone}["pika (asyncio)"]
            )
            node.management.create_vhost("bench")
            setup = BrokerSetup("127.0.0.1", node.amqp_port, "bench", filler)
            broker = str(node.management.call("GET", "/overview")["rabbitmq_version"])
            if series == INSTALLED and not self._prints_only:
                keep(replace(Measurements.load(), machine=describe(self._python, broker)))
            sections = [
                (queue_type, scenario)
                for queue_type in self._queue_types()
                for scenario in self._scenarios()
                if scenario is not Scenario.ROUND_TRIPS or queue_type == "quorum"
            ]
            self._estimate(everyone, [scenario for _, scenario in sections])
            for queue_type, scenario in sections:
                began = time.monotonic()
                self._measure(setup, everyone, series, broker, queue_type, scenario)
                _print_time(f"{scenario}, {queue_type} queues", began)
            self._watch_memory(setup, broker)
        return not self._failed

    def _queue_types(self) -> Sequence[str]:
        """Return the queue types. The main rows only use quorum queues, which depend most on the
        version of the broker.
        """
        return self._chosen.queues or (("quorum",) if self._chosen.main else ("classic", "quorum"))

    def _estimate(self, everyone: Sequence[Contestant], scenarios: Sequence[Scenario]) -> None:
        entered = sum(
            scenario in one.scenarios for scenario in scenarios for one in self._clients(everyone)
        )
        runs = self._settings.fewest * (self._settings.seconds + _OVERHEAD_S)
        minutes = entered * (runs + _OVERHEAD_S) / 60
        print(f"{entered} rows: about {minutes:.0f} minutes", file=sys.stderr)

    def _scenarios(self) -> Sequence[Scenario]:
        named = self._chosen.section
        all_of_them = _MAIN_SCENARIOS if self._chosen.main else _SCENARIOS
        return [each for each in all_of_them if not named or each in named]

    def _clients(self, everyone: Sequence[Contestant]) -> list[Contestant]:
        wanted = [part.lower() for part in self._chosen.only]
        return [
            one
            for one in everyone
            if (not wanted or any(part in one.name.lower() for part in wanted))
            and (not self._chosen.main or one.name in _MAIN_CLIENTS)
        ]

    def _measure(
        self,
        setup: BrokerSetup,
        everyone: Sequence[Contestant],
        series: str,
        broker: str,
        queue_type: str,
        scenario: Scenario,
    ) -> None:
        """Measure a section and store it at once, so that it is not lost if the run is interrupted."""
        clients = self._clients(everyone)
        results = run_rounds(setup, clients, queue_type, scenario, self._settings, undecided)
        self._failed = self._failed or bool(results.failures)
        section = Section(series, queue_type, scenario, _stamp(broker), results)
        named = {one.name: one for one in everyone}
        section = replace(section, profiles=_profiles(setup, section, named))
        if self._prints_only:
            print(section_text(section))
        else:
            keep(Measurements.load().with_section(section))

    def _watch_memory(self, setup: BrokerSetup, broker: str) -> None:
        if self._prints_only or self._chosen.main:
            return
        named = self._chosen.section
        if not named or _MEMORY in named:
            began = time.monotonic()
            found = measure_memory(setup, self._python, self._chosen.messages)
            keep(replace(Measurements.load(), memory=(found, _stamp(broker))))
            _print_time(_MEMORY, began)
        if not named or _GROUPING in named:
            began = time.monotonic()
            grouped = group(setup, self._python, self._chosen.grouped)
            before = Measurements.load()
            others = [each for each in before.groupings if each[0].count != grouped.count]
            together = sorted([*others, (grouped, _stamp(broker))], key=lambda each: each[0].count)
            keep(replace(before, groupings=tuple(together)))
            _print_time(_GROUPING, began)


def _profiles(
    setup: BrokerSetup, section: Section, named: Mapping[str, Contestant]
) -> dict[str, str]:
    """Profile all rows of Hopback that have missed a goal."""
    missed = {each.goal.subject for each in judge(section.results) if each.reached is False}
    found: dict[str, str] = {}
    for subject in sorted(missed):
        job = setup.job(named[subject], section.scenario, section.queue_type, 10_000)
        found[subject] = named[subject].run(replace(job, profile=True)).profile
    return found


def _stamp(broker: str) -> Stamp:
    return stamp_now(broker, os.getloadavg()[0])


def _print_time(what: str, began: float) -> None:
    print(f"{what}: {time.monotonic() - began:.0f} s", file=sys.stderr)


def main() -> int:
    """Measure the selected sections on private nodes."""
    options = _arguments()
    if options.page:
        keep(Measurements.load())
        return 0
    run = _Run(options)
    succeeded = [run.on(series) for series in options.series or [INSTALLED]]
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    raise SystemExit(main())
