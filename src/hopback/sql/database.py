"""The interface for running SQL statements."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from hopback.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")

Row: TypeAlias = "tuple[Any, ...]"
Values: TypeAlias = "Mapping[str, object] | list[dict[str, object]]"

NOTHING: Values = MappingProxyType({})
"""The values of a statement without parameters."""


class RowRefused(StoreUnavailable):
    """Raised when a row violates a constraint."""


class Execute(Protocol):
    """A function that executes a statement in the current transaction and returns the rows."""

    def __call__(self, statement: str, values: Values = NOTHING, /) -> list[Row]:
        """Execute a statement.

        Parameters are written as `:name`. A list of values executes it repeatedly.
        """


@runtime_checkable
class SqlDatabase(Protocol):
    """A database. Raises StoreUnavailable if it is not available."""

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Call `work` in a transaction. The transaction is rolled back if it raises an exception."""

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Call `work` for reading."""


_SQLITE_DAMAGE = frozenset({11, 26})
"""SQLITE_CORRUPT and SQLITE_NOTADB."""
_POSTGRESQL_DAMAGE = frozenset({"XX001", "XX002"})
"""data_corrupted and index_corrupted."""


def is_damage(error: object) -> bool:
    """Return True if an error of the driver means that the database is corrupt."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE_DAMAGE
    return getattr(error, "sqlstate", None) in _POSTGRESQL_DAMAGE


def placeholders(prefix: str, values: Iterable[object]) -> tuple[str, dict[str, object]]:
    """Return the parameters for `IN (…)`, and their values."""
    named = {f"{prefix}{number}": value for number, value in enumerate(values)}
    return ", ".join(f":{name}" for name in named), named
