"""A migrated database for each test: SQLite in a file, or a database of its own on PostgreSQL."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest

from hopback.clock import SystemClock
from hopback.store import migrate, open_database
from tests.harness.postgres import PostgresNode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["database_url", "engine", "postgres"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresNode]:
    """The worker's PostgreSQL server."""
    node = PostgresNode()
    node.start()
    yield node
    node.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    node: PostgresNode = request.getfixturevalue("postgres")
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(node.url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload, unused-ignore]
    return node.url(name)


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine on a migrated database."""
    made = open_database(database_url)
    await migrate(made, SystemClock())
    yield made
    await made.dispose()
