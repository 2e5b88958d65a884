"""Sign-in to the page by OpenID Connect: settings, provider, sessions, routes."""

from __future__ import annotations

__all__: list[str] = []
