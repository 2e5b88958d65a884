"""Libraries that come with an extra: where one is missing, the error is the line to type."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hopback.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """What is imported within comes with the extra; MissingExtra where it is not installed.

    The outermost says which: the extra of a whole brings the extras of its parts.
    """
    try:
        yield
    except (ModuleNotFoundError, MissingExtra) as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "hopback"):  # a mistake of ours is no missing extra
            raise
        raise MissingExtra(
            f"{what} needs {library}, which is not installed: pip install 'hopback[{extra}]'",
            name=library,
        ) from error
