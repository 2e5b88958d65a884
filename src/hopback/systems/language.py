"""Responses in the language of the client, which is English, or Portuguese if the system supports
it.

`in_language(english, portuguese)` returns one of two texts for the current request.
`web_application` chooses the language from the header `Accept-Language`. If the client does not
name a supported language, the first one of the system is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Literal, TypeAlias

Language: TypeAlias = Literal["en", "pt"]

_REFUSED = -1.0
"""The quality of a language that the client refuses. It is lower than the quality of one that is
not in the header.
"""

language: ContextVar[Language] = ContextVar("language", default="en")
"""The language of the response to the current request."""


def in_language(english: str, portuguese: str) -> str:
    """Return the text in the language of the current request. Outside of a request, this is
    English.
    """
    return portuguese if language.get() == "pt" else english


def choose_language(accepted: str, known: Sequence[Language]) -> Language:
    """Return the language that an `Accept-Language` header prefers. If it names none of the known
    languages, the first one is returned.

    Regions are ignored, so `pt-BR` means `pt`. A language with `q=0` is not acceptable for the
    client.
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
