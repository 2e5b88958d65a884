"""The examples work as their pages say: their own tests pass, on PostgreSQL too, and they stay small."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.integration.database import postgres

if TYPE_CHECKING:
    from tests.harness.postgres import PostgresNode

__all__ = ["postgres"]

_ORDERS = Path(__file__).parents[2] / "examples" / "orders"


def test_the_orders_pass_their_own_tests_on_postgresql(postgres: PostgresNode) -> None:
    """As a user runs them, in the folder of the example."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload, unused-ignore]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=_ORDERS,
        env={**os.environ, "DATABASE_URL": postgres.url(name), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "5 passed" in ran.stdout


def test_the_orders_are_as_short_as_they_say() -> None:
    """What a service needs fits in 200 lines."""
    lines = sum(len(one.read_text().splitlines()) for one in _ORDERS.glob("orders/*.py"))
    assert f"in {lines} lines" in (_ORDERS / "README.md").read_text()
    assert lines < 200
