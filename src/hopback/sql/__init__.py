"""SQL without any extra: how the tables came to be, and a database in an SQLite file.

`hopback.store` builds on it for SQLAlchemy, and PostgreSQL with it.
"""

from __future__ import annotations

__all__: list[str] = []
