"""FreeFlow's read models: one for each domain, and the audit."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Double, Integer, MetaData, Table, Text

__all__ = [
    "METADATA",
    "VIEWS",
    "alarms",
    "audit",
    "documents",
    "notifications",
    "users",
    "workflows",
]

METADATA = MetaData()

users: Table = Table(
    "freeflow_users",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("logins", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
)

alarms: Table = Table(
    "freeflow_alarms",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("text", Text, nullable=False),
    Column("cleared", Boolean, nullable=False),
)

documents: Table = Table(
    "freeflow_documents",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("title", Text, nullable=False),
    Column("words", Integer, nullable=False),
    Column("archived", Boolean, nullable=False),
)

workflows: Table = Table(
    "freeflow_workflows",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("steps", Integer, nullable=False),
    Column("done", Integer, nullable=False),
)

notifications: Table = Table(
    "freeflow_notifications",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("recipient", Text, nullable=False),
    Column("text", Text, nullable=False),
)

audit: Table = Table(
    "freeflow_audit",
    METADATA,
    Column("message_id", Text, primary_key=True),
    Column("routing_key", Text, nullable=False),
    Column("arrivals", Integer, nullable=False),
    Column("last_at", Double, nullable=False),
)
"""What the audit's queue received, and how often: of its own domain, or of all where it is bound to `#`. Then
a retry of any domain arrives again, in the documented form."""

VIEWS = {
    "users": users,
    "alarms": alarms,
    "documents": documents,
    "workflows": workflows,
    "notifications": notifications,
    "audit": audit,
}
"""The tables that can be looked at over HTTP."""
