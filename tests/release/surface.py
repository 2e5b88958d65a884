"""How much of the public surface has types that pyright is sure of.

Public is what the front doors export, with its attributes and methods; everything else in the packages is
their own. pyright itself counts every module without an underscore: both are told, and both must be enough.
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
    """How many public symbols there are, and which of them pyright is not sure of."""

    symbols: int
    unknown: tuple[str, ...]
    everything: float

    @property
    def percent(self) -> float:
        """Of the public surface."""
        return 100 * (self.symbols - len(self.unknown)) / self.symbols

    def __str__(self) -> str:
        return (
            f"{self.percent:.2f} % of {self.symbols} public symbols"
            f" ({self.everything:.1f} % of all modules)"
        )


def completeness(python: Path) -> Completeness:
    """Ask pyright about the package that is installed beside this interpreter."""
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
    told = json.loads(ran.stdout)["typeCompleteness"]
    homes = json.loads(
        subprocess.run(
            # This environment has everything that the front doors can load, pytest included.
            [sys.executable, "-c", _HOMES, *DOORS],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    public = [one for one in told["symbols"] if _is_within(one["name"], homes)]
    unknown = tuple(one["name"] for one in public if not one["isTypeKnown"])
    return Completeness(len(public), unknown, 100 * told["completenessScore"])


def _is_within(name: str, homes: list[str]) -> bool:
    return any(name == home or name.startswith(f"{home}.") for home in homes)
