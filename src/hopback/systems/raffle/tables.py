"""The raffle's tables."""

from __future__ import annotations

from sqlalchemy import Column, DateTime, ForeignKey, LargeBinary, MetaData, Table, Text

__all__ = ["METADATA", "dropped", "entries", "raffles", "users"]

METADATA = MetaData()

users: Table = Table(
    "users",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("email", Text, nullable=False, unique=True),
    Column("inserted_at", DateTime(timezone=True)),
    Column("updated_at", DateTime(timezone=True)),
)
"""As Ecto names the times of a row. They may be empty: tables of earlier versions did not have them."""

raffles: Table = Table(
    "raffles",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("drawn_at", DateTime(timezone=True)),
)

entries: Table = Table(
    "raffle_entries",
    METADATA,
    Column("raffle_id", Text, ForeignKey("raffles.id"), primary_key=True),
    Column("user_id", Text, ForeignKey("users.id"), primary_key=True),
    Column("won_at", DateTime(timezone=True)),
)

dropped: Table = Table(
    "raffle_dropped",
    METADATA,
    Column("message_id", Text, primary_key=True),
    Column("dropped_at", DateTime(timezone=True), nullable=False),
    Column("reason", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""The audit of the dead-letter consumer: messages that are no users, with their content."""
