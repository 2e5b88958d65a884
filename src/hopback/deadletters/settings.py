"""What whoever runs the operations decides: limits, folders, and what is switched on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and switches.

    `exports` is the folder for what a discard writes before it removes; None: every discard has to
    name a file. `editing` allows to re-drive a changed copy. `sessions` is how many browse sessions
    may be open at once, `session_messages`, `session_bytes` and `session_s` how much and how long
    one may hold: a broker takes back what is held for half an hour. `scan` is how many messages a
    dry run looks at. A job whose process was not heard of for `lease_s` counts as interrupted; one
    whose broker is away waits for it up to `patience_s` before it is interrupted. `per_turn` is how many
    messages a job sends before others in the process have their turn.
    """

    exports: Path | None = None
    editing: bool = False
    sessions: int = 20
    session_messages: int = 10_000
    session_bytes: int = 256 * 1024 * 1024
    session_s: float = 1500.0
    scan: int = 1000
    lease_s: float = 30.0
    patience_s: float = 1800.0
    per_turn: int = 32
