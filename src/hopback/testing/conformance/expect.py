"""How rows compare: errors say what was looked at, what was expected and what was found."""

from __future__ import annotations

__all__ = ["Mismatch", "equal", "that"]


class Mismatch(AssertionError):
    """The broker under test does not do what the row says."""


def equal(what: str, found: object, expected: object) -> None:
    """Require equality."""
    if found != expected:
        raise Mismatch(f"{what}: expected {expected!r}, found {found!r}")


def that(condition: object, what: str) -> None:
    """Require the condition."""
    if not condition:
        raise Mismatch(f"expected that {what}")
