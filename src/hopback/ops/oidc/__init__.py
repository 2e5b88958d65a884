"""Sign-in to the page with OpenID Connect."""

from __future__ import annotations

__all__: list[str] = []
