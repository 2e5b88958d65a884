"""The words that findings share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "HARDENED",
    "THE_TOPOLOGY",
    "exchange_place",
    "listed",
    "named",
    "plan_place",
    "policy_place",
    "queue_place",
]

HARDENED = "run the hardened form (`--hardened` for a documented design)"
"""How a fix names the form that has none of these hazards."""

THE_TOPOLOGY = "topology"
"""The place of what concerns everything."""

_MOST_NAMES = 12  # a list of more is no longer read


def named(name: str) -> str:
    """A name within a sentence; nothing that could disturb a terminal."""
    return f"`{printable(name)}`"


def listed(names: Iterable[str]) -> str:
    """`a`, `b` and `c`, each once; a long list is cut short and counted."""
    every = [named(name) for name in sorted(set(names))]
    shown = every[:_MOST_NAMES] if len(every) > _MOST_NAMES + 1 else every
    if len(shown) < len(every):
        return f"{', '.join(shown)} and {len(every) - len(shown)} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def queue_place(*names: str) -> str:
    """The place of a queue, or of several."""
    return f"queue{'s' if len(set(names)) > 1 else ''} {listed(names)}"


def exchange_place(name: str) -> str:
    """The place of an exchange."""
    return f"exchange {named(name)}"


def plan_place(queue: str) -> str:
    """The place of a queue's failure plan."""
    return f"plan of queue {named(queue)}"


def policy_place(name: str) -> str:
    """The place of a policy."""
    return f"policy {named(name)}"
