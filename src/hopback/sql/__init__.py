"""Migrations, and access to SQLite without additional dependencies.

`hopback.store` adds support for PostgreSQL with SQLAlchemy.
"""

from __future__ import annotations

__all__: list[str] = []
