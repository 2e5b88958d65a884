"""Names in Mermaid: safe ids and labels, whatever a queue is called."""

from __future__ import annotations

import re

__all__ = ["Ids", "label"]

_WORD = re.compile(r"[^A-Za-z0-9]+", re.ASCII)
_LONGEST_ID = 40  # names of nodes stay readable in the source of the diagram
_PLAIN = frozenset(" .,_-*/()+=→…")


def label(text: str) -> str:
    """The text as a label: letters, digits and a few signs stay, all others become entities.

    So nothing in a name can end a label, open a tag or begin a comment.
    """
    return "".join(sign if _stays(sign) else _entity(sign) for sign in text) or "(no name)"


def _stays(sign: str) -> bool:
    return sign in _PLAIN or sign.isalnum()


def _entity(sign: str) -> str:
    # What cannot be shown (control characters, halves of surrogate pairs) has no entity either.
    return f"#{ord(sign)};" if sign.isprintable() else "�"


class Ids:
    """Gives each name an id of its own: readable, of letters, digits and underscores only."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()

    def of(self, kind: str, name: str) -> str:
        """The id of what has this kind and name, the same at every call."""
        known = self._given.get((kind, name))
        return known if known is not None else self._new(kind, name)

    def _new(self, kind: str, name: str) -> str:
        stem = f"{kind}_{_WORD.sub('_', name).strip('_')[:_LONGEST_ID]}".rstrip("_")
        number, chosen = 1, stem
        while chosen in self._taken:
            number += 1
            chosen = f"{stem}_{number}"
        self._taken.add(chosen)
        self._given[kind, name] = chosen
        return chosen
