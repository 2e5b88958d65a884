"""The sections that were measured. They are stored in results.json, from which the page is
generated.

A section is a scenario on a queue type of a broker. All clients of a section are measured together,
because ratios are computed within a round. It contains the date and the commit. Sections can be
measured separately.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT, Machine
from benchmarks.grouping import Grouping
from benchmarks.memory import Memory
from benchmarks.rounds import Case, Results
from benchmarks.workload import Measured, Scenario

__all__ = [
    "INSTALLED",
    "RESULTS_FILE",
    "Measurements",
    "Section",
    "Stamp",
    "Table",
    "TableGoal",
    "stamp_now",
]

RESULTS_FILE = Path(__file__).with_name("results.json")
INSTALLED = "installed"
"""The name that stands for the version of the installed broker."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The date, commit and broker of a measurement. `load` is the load average at its end."""

    day: str
    commit: str
    broker: str
    load: float


def stamp_now(broker: str, load: float) -> Stamp:
    """Create the stamp of a measurement that has just ended."""
    return Stamp(f"{datetime.now(UTC):%Y-%m-%d}", _commit(), broker, round(load, 1))


def _commit() -> str:
    """Return the commit, and a note if the source has been changed."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD").strip()
        changed = _git(
            "status", "--porcelain", "--", "src", "benchmarks/*.py", "benchmarks/clients"
        )
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
    return f"{head} and changes" if changed.strip() else head


def _git(*words: str) -> str:
    ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout


@dataclass(frozen=True, slots=True)
class Section:
    """The runs of a scenario. `profiles` contains the profiles of Hopback's rows that missed a
    goal.
    """

    series: str
    queue_type: str
    scenario: Scenario
    stamp: Stamp
    results: Results
    profiles: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.series, self.queue_type, self.scenario

    @property
    def rounds(self) -> int:
        return max(map(len, self.results.runs.values()), default=0)


@dataclass(frozen=True, slots=True)
class TableGoal:
    """A goal of a table and its result. `what` is its name, also in `reasons.toml`."""

    what: str
    goal: str
    found: str
    reached: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A text with other figures and their goals. It was created together with the measurement."""

    name: str
    title: str
    stamp: Stamp
    text: str
    goals: tuple[TableGoal, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurements:
    """All measurements on the page."""

    machine: Machine | None = None
    sections: tuple[Section, ...] = ()
    memory: tuple[Memory, Stamp] | None = None
    groupings: tuple[tuple[Grouping, Stamp], ...] = ()
    tables: tuple[Table, ...] = ()

    def with_table(self, table: Table) -> Measurements:
        """Return a copy in which a table is added or replaced."""
        others = [one for one in self.tables if one.name != table.name]
        return replace(self, tables=tuple(sorted([*others, table], key=lambda one: one.name)))

    def with_section(self, section: Section) -> Measurements:
        """Return a copy in which a section is added or replaced."""
        others = [one for one in self.sections if one.key != section.key]
        ordered = sorted([*others, section], key=_place)
        return replace(self, sections=tuple(ordered))

    @classmethod
    def load(cls, path: Path = RESULTS_FILE) -> Measurements:
        """Read the stored measurements. If there is no file, there are none."""
        if not path.exists():
            return cls()
        data = json.loads(path.read_text(encoding="utf-8"))
        memory, groupings = data["memory"], data["groupings"]
        return cls(
            data["machine"] and Machine(**data["machine"]),
            tuple(map(_section, data["sections"])),
            memory and (Memory(**memory["found"]), Stamp(**memory["stamp"])),
            tuple((Grouping(**each["found"]), Stamp(**each["stamp"])) for each in groupings),
            tuple(map(_table, data.get("tables", ()))),
        )

    def save(self, path: Path = RESULTS_FILE) -> None:
        """Write the file. Each section is on its own line."""
        data: dict[str, Any] = {
            "machine": self.machine and asdict(self.machine),
            "memory": self.memory and _stamped(*self.memory),
            "groupings": [_stamped(*each) for each in self.groupings],
            "tables": [asdict(table) for table in self.tables],
        }
        written = [f'"{name}": {json.dumps(value)}' for name, value in data.items()]
        sections = ",\n".join(
            json.dumps(_plain(each), ensure_ascii=False) for each in self.sections
        )
        written.append(f'"sections": [\n{sections}\n]')
        path.write_text("{" + ",\n".join(written) + "}\n", encoding="utf-8")


def _place(section: Section) -> tuple[bool, str, str, int]:
    """Return the sort key of a section. The installed broker comes first, and scenarios keep their
    order.
    """
    order = list(Scenario).index(section.scenario)
    return section.series != INSTALLED, section.series, section.queue_type, order


def _stamped(found: object, stamp: Stamp) -> dict[str, Any]:
    return {"stamp": asdict(stamp), "found": asdict(found)}  # type: ignore[call-overload]


_FIGURES = ("count", "seconds", "cpu_seconds")


def _plain(section: Section) -> dict[str, Any]:
    return {
        "series": section.series,
        "queue_type": section.queue_type,
        "scenario": section.scenario,
        "stamp": asdict(section.stamp),
        "runs": {
            case.name: [run and [round(getattr(run, name), 4) for name in _FIGURES] for run in runs]
            for case, runs in section.results.runs.items()
        },
        "failures": section.results.failures,
        "profiles": section.profiles,
    }


def _table(data: dict[str, Any]) -> Table:
    goals = tuple(TableGoal(**goal) for goal in data["goals"])
    return Table(data["name"], data["title"], Stamp(**data["stamp"]), data["text"], goals)


def _section(data: dict[str, Any]) -> Section:
    scenario = Scenario(data["scenario"])
    runs: dict[Case, list[Measured | None]] = {
        Case(data["queue_type"], scenario, name): [run and Measured(*run) for run in each]
        for name, each in data["runs"].items()
    }
    results = Results(runs, data["failures"])
    stamp = Stamp(**data["stamp"])
    return Section(data["series"], data["queue_type"], scenario, stamp, results, data["profiles"])
