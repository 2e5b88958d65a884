"""The password of the programs of a campaign. It is stored in a file, so that it can be changed
while they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["keep_password", "password_in"]

_NAME = "password"


def keep_password(folder: Path, password: str) -> None:
    """Set the password for new connections. The file is replaced atomically."""
    fresh = folder / f"{_NAME}.new"
    fresh.write_text(password, encoding="utf-8")
    fresh.replace(folder / _NAME)


def password_in(folder: Path) -> Callable[[], str] | None:
    """Return the password callback for `RabbitMQ`. Returns None if the URL contains the password."""
    path = folder / _NAME
    return (lambda: path.read_text(encoding="utf-8")) if path.exists() else None
