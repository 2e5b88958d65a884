"""An unusable database raises `StoreUnavailable` for every driver error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.clock import ManualClock
from hopback.errors import StoreUnavailable
from hopback.ops import AuditQuery, Journal
from hopback.store.database import EngineDatabase, open_database

if TYPE_CHECKING:
    from pathlib import Path


async def test_missing_tables_are_reported_as_store_unavailable(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'empty.db'}")
    journal = Journal(EngineDatabase(engine), ManualClock(0.0))
    calls = (
        journal.job("j-1"),
        journal.failures("j-1", 0, 1),
        journal.renew("j-1", "me"),
        journal.read_entries(AuditQuery()),
    )
    try:
        for call in calls:
            with pytest.raises(StoreUnavailable, match="cannot be used: no such table: hopback_"):
                await call
    finally:
        await engine.dispose()
