"""Rows into PostgreSQL by COPY: a batch is stored completely or not at all, and may be repeated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from hopback.store.rows import copy_rows

if TYPE_CHECKING:
    from tests.harness.shared import SharedPostgres

pytestmark = pytest.mark.broker

_COLUMNS = ("id", "Name")


async def _table(url: str) -> psycopg.AsyncConnection[Any]:
    connection = await psycopg.AsyncConnection.connect(url)
    await connection.execute(
        'CREATE TABLE customers (number serial, id int PRIMARY KEY, "Name" text NOT NULL)'
    )
    await connection.commit()
    return connection


async def _found(connection: psycopg.AsyncConnection[Any]) -> list[tuple[Any, ...]]:
    answer = await connection.execute('SELECT id, "Name" FROM customers ORDER BY id')
    return await answer.fetchall()


def test_existing_rows_are_not_changed(postgres: SharedPostgres) -> None:
    """This holds within one transaction and with a schema. New rows are counted."""

    async def run() -> tuple[list[int], list[tuple[Any, ...]]]:
        async with await _table(postgres.create_database()) as connection:
            new = [await copy_rows(connection, "customers", _COLUMNS, [(1, "ann"), (2, "bob")])]
            new.append(
                await copy_rows(connection, "customers", _COLUMNS, [(2, "eve"), (3, "tab\t\\N")])
            )
            await connection.commit()
            new.append(
                await copy_rows(connection, "public.customers", _COLUMNS, [(3, "x"), (4, "dan")])
            )
            await connection.commit()
            return new, await _found(connection)

    new, found = asyncio.run(run())
    assert new == [2, 1, 1]
    assert found == [(1, "ann"), (2, "bob"), (3, "tab\t\\N"), (4, "dan")]


def test_refused_row_rolls_back_its_batch(postgres: SharedPostgres) -> None:
    """Bisection can call again with the halves."""

    async def run() -> list[tuple[Any, ...]]:
        async with await _table(postgres.create_database()) as connection:
            with pytest.raises(psycopg.errors.NotNullViolation):
                await copy_rows(connection, "customers", _COLUMNS, [(1, "ann"), (2, None)])
            await connection.rollback()
            assert await copy_rows(connection, "customers", _COLUMNS, [(1, "ann")]) == 1
            await connection.commit()
            return await _found(connection)

    assert asyncio.run(run()) == [(1, "ann")]
