"""SQL without extras: the migrations, the database port, and SQLite.

`hopback.store` adds SQLAlchemy, and with it PostgreSQL.
"""

from __future__ import annotations

__all__: list[str] = []
