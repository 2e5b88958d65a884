"""The five documented systems as applications, on Hopback's public API.

Each lives in a folder of its own with a README, and describes itself as `SYSTEM` (see `host.py`).
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
        "file-pipeline": "hopback.systems.file_pipeline",
        "event-bus": "hopback.systems.event_bus",
        "freeflow": "hopback.systems.freeflow",
        "raffle": "hopback.systems.raffle",
        "ratatoskr": "hopback.systems.ratatoskr",
    }
)
"""Where each system lives, by the name that the command knows it by."""


def load_system(name: str) -> System:
    """The system of that name; its libraries are loaded only now. KeyError if there is none."""
    system: System = import_module(HOMES[name]).SYSTEM
    return system
