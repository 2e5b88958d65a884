"""Helpers for optional dependencies."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hopback.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """A context manager for imports of optional dependencies.

    If blocks are nested, the error names the extra of the outermost block.

    Raises:
        MissingExtra: If a library is not installed.
    """
    try:
        yield
    except (ModuleNotFoundError, MissingExtra) as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "hopback"):  # a bug in Hopback, not a missing extra
            raise
        raise MissingExtra(
            f"{what} needs {library}, which is not installed: pip install 'hopback[{extra}]'",
            name=library,
        ) from error
