"""The file pipeline: upload, validate, draw, extract, project, notify, audit.

A file comes in over HTTP and goes from queue to queue; what fails waits 15 s and comes back to the
consumer that failed alone. See the README in this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.systems.host import System

    SYSTEM: System

__all__ = ["SYSTEM"]


def __getattr__(name: str) -> System:
    """`SYSTEM`, loaded when it is first asked for: a part needs less than the whole."""
    if name != "SYSTEM":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hopback.systems.file_pipeline.demo import SYSTEM

    return SYSTEM
