"""How statements reach a database, whichever library speaks to it."""

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
"""No values: the statement names none."""


class RowRefused(StoreUnavailable):
    """A row breaks a rule of its table: another has the same key, or rows may only be added."""


class Execute(Protocol):
    """Runs one statement in the transaction that is open and gives its rows."""

    def __call__(self, statement: str, values: Values = NOTHING, /) -> list[Row]:
        """`:name` in the statement stands for a value; for several sets of values it runs for each."""


@runtime_checkable
class SqlDatabase(Protocol):
    """A database whose tables are there. StoreUnavailable is raised if it does not answer, or refuses."""

    async def write(self, work: Callable[[Execute], T], /) -> T:
        """Do the work in one transaction: all of it, or nothing if it raises."""

    async def read(self, work: Callable[[Execute], T], /) -> T:
        """Do work that changes nothing."""


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
    """For `IN (…)`: the names of so many values, and the values by these names."""
    named = {f"{prefix}{number}": value for number, value in enumerate(values)}
    return ", ".join(f":{name}" for name in named), named
