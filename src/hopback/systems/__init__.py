"""The five documented systems, built with Hopback's public API.

Each system is a package with a README. Its module `demo` defines `SYSTEM`, which describes the
system (see `host.py`).
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.systems.host import System

__all__ = ["HOMES", "load_system"]

HOMES: Mapping[str, str] = MappingProxyType(
    {
        "ratatoskr": "hopback.systems.ratatoskr",
        "freeflow": "hopback.systems.freeflow",
        "event-bus": "hopback.systems.event_bus",
        "raffle": "hopback.systems.raffle",
        "file-pipeline": "hopback.systems.file_pipeline",
    }
)
"""The package of each system, by its command name. The list starts with the shortest system, whose
code is explained most.
"""


def load_system(name: str) -> System:
    """Import and return a system. Raises KeyError if there is no system with this name."""
    system: System = import_module(f"{HOMES[name]}.demo").SYSTEM
    return system
