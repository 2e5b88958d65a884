"""FreeFlow's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.systems.settings import Environment

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FreeFlowSettings"]


@dataclass(frozen=True, slots=True)
class FreeFlowSettings:
    """Everything that FreeFlow is told by its environment."""

    database: str = "sqlite:///freeflow.db"
    hardened: bool = False

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> FreeFlowSettings:
        """From environment variables; SettingsError names all that are wrong."""
        found = Environment(variables)
        settings = cls(found.text("DATABASE_URL", cls().database), found.flag("HARDENED"))
        found.check()
        return settings
