"""Answers in the language of the client: English, or Portuguese where a system has both.

`in_language(english, portuguese)` returns the text for the current request. `web_application` chooses the
language of a request by its header `Accept-Language` from the languages of the system. The first of them is
the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Literal, TypeAlias

Language: TypeAlias = Literal["en", "pt"]

_REFUSED = -1.0
"""The quality of a refused language: below a language that a header does not name."""

language: ContextVar[Language] = ContextVar("language", default="en")
"""The language of the answer to the current request."""


def in_language(english: str, portuguese: str) -> str:
    """Return the text in the language of the current request. Outside a request it is English."""
    return portuguese if language.get() == "pt" else english


def choose_language(accepted: str, known: Sequence[Language]) -> Language:
    """Return the known language that an `Accept-Language` header prefers, or the first one if there is none.

    Regions are ignored: `pt-BR` is `pt`. A language with `q=0` is refused by the client.
    """
    preferred: dict[str, float] = {}
    for part in accepted.split(","):
        name, _, parameters = part.partition(";")
        quality = parameters.strip().removeprefix("q=") if parameters else "1"
        known_as = name.strip().lower().partition("-")[0]
        try:
            found = float(quality) or _REFUSED
        except ValueError:
            continue
        preferred[known_as] = max(found, preferred.get(known_as, _REFUSED))
    return max(known, key=lambda one: preferred.get(one, 0.0))
