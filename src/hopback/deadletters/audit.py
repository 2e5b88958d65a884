"""What was done, by whom and why: one entry for each act, never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NEWEST", "AuditEntry", "AuditQuery"]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One act. `number` orders entries and is given when it is written; 0 before that.

    `action` is a word with a dot, as `job.start`, `session.open`, `message.show`; `result` is `ok`,
    `refused` or `failed`. `details` holds plain values only: numbers, texts, no secrets, no payloads.
    """

    at: float
    by: str
    action: str
    queue: str = ""
    job: str = ""
    reason: str = ""
    result: str = "ok"
    details: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    number: int = 0


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which entries are wanted, the newest first; empty means any. `before` is a number to go on from."""

    by: str = ""
    action: str = ""
    queue: str = ""
    job: str = ""
    before: int | None = None
    limit: int = 100


NEWEST = AuditQuery()
"""The newest hundred of all."""
