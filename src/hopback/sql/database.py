"""The port through which Hopback sends SQL statements to SQLite and PostgreSQL."""

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
"""The values of a statement without placeholders."""


class RowRefused(StoreUnavailable):
    """A row violates a constraint of its table."""


class Execute(Protocol):
    """Executes one statement in the open transaction and returns its rows."""

    def __call__(self, statement: str, values: Values = NOTHING, /) -> list[Row]:
        """`:name` is the placeholder of a value. With a list of values, execute the statement for each."""


@runtime_checkable
class SqlDatabase(Protocol):
    """A migrated database. It raises StoreUnavailable if it does not answer or refuses a statement."""

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Do the work in one transaction, which is rolled back if the work raises."""

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Do work that only reads."""


_SQLITE_DAMAGE = frozenset({11, 26})
"""SQLITE_CORRUPT and SQLITE_NOTADB: pages that contradict each other, or a header that is not SQLite's."""
_POSTGRESQL_DAMAGE = frozenset({"XX001", "XX002"})
"""data_corrupted and index_corrupted."""


def is_damage(error: object) -> bool:
    """Whether a driver's error reports a corrupt database, by SQLite's code or PostgreSQL's SQLSTATE."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in _SQLITE_DAMAGE
    return getattr(error, "sqlstate", None) in _POSTGRESQL_DAMAGE


def placeholders(prefix: str, values: Iterable[object]) -> tuple[str, dict[str, object]]:
    """Return the placeholders of an `IN (…)` for these values, and the values by placeholder."""
    named = {f"{prefix}{number}": value for number, value in enumerate(values)}
    return ", ".join(f":{name}" for name in named), named
