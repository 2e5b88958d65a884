"""A migrated database for each test: a SQLite file, or a separate PostgreSQL database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.clock import SystemClock
from hopback.sql.sqlite import SqliteDatabase
from hopback.store import migrate, open_database
from hopback.store.database import EngineDatabase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine

    from hopback.sql.database import SqlDatabase
    from tests.harness.shared import SharedPostgres

__all__ = ["database_url", "engine", "sql_database"]


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    server: SharedPostgres = request.getfixturevalue("postgres")
    return server.create_database()


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine on a migrated database."""
    made = open_database(database_url)
    await migrate(made, SystemClock())
    yield made
    await made.dispose()


@pytest.fixture(params=["sqlite alone", "sqlite", "postgresql"])
async def sql_database(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[SqlDatabase]:
    """A migrated database, with and without SQLAlchemy."""
    if request.param == "sqlite alone":
        file = SqliteDatabase(tmp_path / "test.db", SystemClock())
        yield file
        await file.close()
        return
    url = f"sqlite:///{tmp_path / 'test.db'}"
    if request.param == "postgresql":
        server: SharedPostgres = request.getfixturevalue("postgres")
        url = server.create_database()
    made = open_database(url)
    await migrate(made, SystemClock())
    yield EngineDatabase(made)
    await made.dispose()
