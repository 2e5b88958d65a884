"""Libraries of extras: if one is missing, the error contains the install command."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hopback.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Wrap the imports of an extra's libraries. Raise MissingExtra if one is not installed.

    If blocks are nested, the outermost one names the extra, which includes the extras of its parts.
    """
    try:
        yield
    except (ModuleNotFoundError, MissingExtra) as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "hopback"):  # a missing module of Hopback is a bug
            raise
        raise MissingExtra(
            f"{what} needs {library}, which is not installed: pip install 'hopback[{extra}]'",
            name=library,
        ) from error
