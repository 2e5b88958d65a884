"""Dead letters: find them, look without harm, send back without loss.

`operations.Operations` is the one object that front ends call. Everything below it is either pure
(discovery, letters, filters, cost, plans) or does one thing with a broker (sessions, jobs).
"""

from __future__ import annotations

__all__: list[str] = []
