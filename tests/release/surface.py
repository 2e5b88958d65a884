"""Share of the public surface whose types pyright knows.

Public names are the exports of the front doors with their attributes and methods. pyright also
counts every module without an underscore. Both shares are reported, and both must be high enough.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.clients.environment import pyright

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DOORS", "Completeness", "completeness"]

DOORS = (
    "hopback",
    "hopback.broker",
    "hopback.ops",
    "hopback.runtime",
    "hopback.testing",
    "hopback.topology",
)

_HOMES = """
import importlib, json, sys
found = []
for door in sys.argv[1:]:
    package = importlib.import_module(door)
    for name in package.__all__:
        thing = getattr(package, name)
        found.append(f"{door}.{name}")
        home = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
        if all(isinstance(part, str) for part in home) and home[0].startswith("hopback"):
            found.append(".".join(home))
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Completeness:
    """Number of public symbols, and those whose types pyright does not know."""

    symbols: int
    unknown: tuple[str, ...]
    everything: float

    @property
    def percent(self) -> float:
        """Return the share of the public surface in percent."""
        return 100 * (self.symbols - len(self.unknown)) / self.symbols

    def __str__(self) -> str:
        return (
            f"{self.percent:.2f} % of {self.symbols} public symbols"
            f" ({self.everything:.1f} % of all modules)"
        )


def completeness(python: Path) -> Completeness:
    """Run pyright on the package that is installed for this interpreter."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    command = [
        "node",
        str(pyright()),
        "--verifytypes",
        "hopback",
        "--ignoreexternal",
        "--outputjson",
    ]
    ran = subprocess.run(
        command,
        cwd=python.parent,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(ran.stdout)["typeCompleteness"]
    homes = json.loads(
        subprocess.run(
            # This environment has every package that the front doors can load, including pytest.
            [sys.executable, "-c", _HOMES, *DOORS],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    public = [one for one in report["symbols"] if _is_within(one["name"], homes)]
    unknown = tuple(one["name"] for one in public if not one["isTypeKnown"])
    return Completeness(len(public), unknown, 100 * report["completenessScore"])


def _is_within(name: str, homes: list[str]) -> bool:
    return any(name == home or name.startswith(f"{home}.") for home in homes)
