"""Options have limits: one that makes no sense is refused where it is given, by its name."""

from __future__ import annotations

from hopback.errors import InvalidTopology, Problem

__all__ = ["require"]


def require(option: str, fits: bool, expected: str, got: object) -> None:
    """InvalidTopology unless the option fits."""
    if not fits:
        raise InvalidTopology((Problem(option, expected, repr(got)),), where="handler options")
