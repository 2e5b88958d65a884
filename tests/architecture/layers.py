"""Import rules of the package as data: the parts of Hopback and the libraries that each module may
import.

The longest matching prefix applies to a module. Modules with the same prefix may import each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FRONT_DOORS", "IMPURE", "LAYERS", "LIBRARIES", "OPS_LEVELS", "entry_for", "within"]

_VALUES = (
    "hopback.clock",
    "hopback.durations",
    "hopback.errors",
    "hopback.extras",
    "hopback.fields",
    "hopback.front_door",
    "hopback.headers",
    "hopback.message",
    "hopback.mismatches",
    "hopback.text",
    "hopback.version",
)
_PURE = (*_VALUES, "hopback.topology", "hopback.policy", "hopback.designs")
_PORT = ("hopback.broker.port",)
_BROKERS = (
    "hopback.broker",
    "hopback.broker.rabbitmq",
    "hopback.broker.server",
    "hopback.broker.embedded",
)
_ABOVE = (
    "hopback.endpoint",
    "hopback.observe",
    "hopback.private_files",
    "hopback.runtime",
    "hopback.runtime.address",
    "hopback.sql",
    "hopback.store",
    "hopback.waiting",
)

FRONT_DOORS = (
    "hopback",
    "hopback.broker",
    "hopback.broker.declare",
    "hopback.broker.management",
    "hopback.broker.server",
    "hopback.designs",
    "hopback.designs.event_bus",
    "hopback.designs.freeflow",
    "hopback.designs.raffle",
    "hopback.errors",
    "hopback.extras",
    "hopback.observe",
    "hopback.observe.logs",
    "hopback.observe.metrics",
    "hopback.ops",
    "hopback.ops.http",
    "hopback.runtime",
    "hopback.store",
    "hopback.topology",
)
"""The modules that a user imports. The systems import no others."""

LAYERS: dict[str, tuple[str, ...]] = {
    "hopback.errors": (),
    "hopback.extras": ("hopback.errors",),
    "hopback.version": (),
    "hopback.clock": (),
    "hopback.fields": (),
    "hopback.front_door": (),
    "hopback.text": ("hopback.fields",),
    "hopback.waiting": (),
    "hopback.message": ("hopback.fields",),
    "hopback.mismatches": ("hopback.fields", "hopback.text"),
    "hopback.headers": _VALUES,
    "hopback.topology": _VALUES,
    "hopback.policy": (*_VALUES, "hopback.topology"),
    "hopback.designs": (*_VALUES, "hopback.topology"),
    "hopback.wire": (
        "hopback.errors",
        "hopback.fields",
        "hopback.message",
        "hopback.version",
    ),
    "hopback.broker": (*_PURE, *_PORT, "hopback.waiting"),
    "hopback.broker.rabbitmq": (*_PURE, *_PORT, "hopback.wire"),
    "hopback.broker.embedded": (*_PURE, *_PORT, "hopback.broker", "hopback.wire"),
    "hopback.broker.server": (
        *_PURE,
        *_PORT,
        "hopback.broker.embedded",
        "hopback.endpoint",
        "hopback.wire",
    ),
    "hopback.endpoint": (),
    "hopback.private_files": (),
    "hopback.observe": _VALUES,
    "hopback.sql": (*_VALUES, "hopback.private_files"),
    "hopback.store": (
        *_VALUES,
        "hopback.observe",
        "hopback.policy",
        "hopback.private_files",
        "hopback.sql",
        "hopback.wire.outgoing",  # an outbox refuses messages that no broker takes
    ),
    # An application database relays its outbox.
    "hopback.store.application_database": (
        *_VALUES,
        "hopback.runtime.relay",
        "hopback.store",
    ),
    "hopback.runtime": (
        *_PURE,
        *_PORT,
        "hopback.endpoint",
        "hopback.observe",
        "hopback.runtime.address",
        "hopback.store",
        "hopback.waiting",
    ),
    # Programs may pass an address instead of a broker.
    "hopback.runtime.address": (*_PORT, "hopback.broker.rabbitmq"),
    # Consumers of other libraries run with parts of the runtime.
    "hopback.integrations": (
        *_PURE,
        *_PORT,
        "hopback.broker.rabbitmq",
        "hopback.observe",
        "hopback.runtime",
        "hopback.waiting",
    ),
    "hopback.rehearse": (
        *_PURE,
        *_PORT,
        "hopback.broker.embedded",
        "hopback.runtime",
        "hopback.waiting",
    ),
    "hopback.testing": (*_PURE, *_PORT, *_BROKERS, *_ABOVE, "hopback.rehearse"),
    "hopback.cli": (
        *_PURE,
        *_PORT,
        *_BROKERS,
        *_ABOVE,
        "hopback.integrations",
        "hopback.rehearse",
        "hopback.testing",
    ),
    # The operator tools use the core. The core does not import them.
    "hopback.ops": (*_PURE, *_PORT, *_BROKERS, *_ABOVE, "hopback.rehearse"),
    "hopback.ops.cli": (*_PURE, *_PORT, *_BROKERS, *_ABOVE, "hopback.cli", "hopback.ops"),
    "hopback.ops.alerts.command": (
        "hopback.cli",
        "hopback.ops",
        "hopback.ops.cli",
        *_ABOVE,
        *_VALUES,
    ),
    "hopback.ops.notes.command": ("hopback.cli", "hopback.ops", "hopback.ops.cli"),
    "hopback.systems": FRONT_DOORS,
    # `hopback demo` is the command that runs the systems.
    "hopback.systems.demo": (
        *FRONT_DOORS,
        "hopback.cli",
        "hopback.private_files",
        "hopback.runtime.depths",
        "hopback.systems",
        "hopback.text",
        "hopback.waiting",
    ),
    "hopback.__main__": ("hopback.cli",),
    "hopback": (*_PURE, *_PORT, *_BROKERS, *_ABOVE, "hopback.testing"),
}

OPS_LEVELS: dict[str, int] = {
    "hopback.ops.contract": 0,
    "hopback.ops.documents": 0,
    "hopback.ops.messages": 0,
    "hopback.ops.alerts.book": 0,
    "hopback.ops.alerts.quiet": 0,
    "hopback.ops.alerts.rules": 0,
    "hopback.ops.alerts.values": 0,
    "hopback.ops.notes.values": 0,
    "hopback.ops.brokers": 1,
    "hopback.ops.browse": 2,
    "hopback.ops.jobs": 3,
    "hopback.ops.operations": 4,
    "hopback.ops.client": 4,
    "hopback.ops": 5,
}
"""The levels inside the operator tools. At run time a module imports its own level and those below it."""

LIBRARIES: dict[str, frozenset[str]] = {
    "hopback": frozenset(),
    "hopback.mismatches": frozenset({"msgspec"}),
    "hopback.topology": frozenset({"tomli_w"}),
    "hopback.broker.management": frozenset({"httpx"}),
    "hopback.broker.named_brokers": frozenset({"msgspec"}),
    "hopback.ops": frozenset({"msgspec"}),
    "hopback.ops.alerts": frozenset({"httpx", "msgspec", "starlette"}),
    "hopback.ops.alerts.command": frozenset({"click"}),
    "hopback.ops.notes.command": frozenset({"click"}),
    "hopback.ops.cli": frozenset({"click", "httpx", "msgspec", "rich", "uvicorn", "uvloop"}),
    "hopback.ops.client": frozenset({"httpx", "msgspec"}),
    "hopback.ops.http": frozenset(
        {"h11", "httpx", "jinja2", "jwt", "markupsafe", "msgspec", "starlette", "uvicorn"}
    ),
    "hopback.ops.messages.archive": frozenset({"msgspec", "zstandard"}),
    "hopback.ops.messages.body": frozenset({"msgspec", "yaml", "zstandard"}),
    "hopback.ops.notes.http": frozenset({"msgspec", "starlette"}),
    "hopback.ops.oidc": frozenset(
        {"authlib", "cryptography", "httpx", "joserfc", "jwt", "msgspec", "starlette"}
    ),
    "hopback.ops.page": frozenset({"jinja2", "markupsafe", "msgspec", "starlette"}),
    "hopback.integrations.aio_pika": frozenset({"aio_pika"}),
    "hopback.integrations.celery": frozenset({"billiard", "celery"}),
    "hopback.integrations.celery_settings": frozenset(),
    "hopback.integrations.faststream": frozenset({"aio_pika", "fast_depends", "faststream"}),
    "hopback.integrations.pika": frozenset({"pika"}),
    "hopback.observe": frozenset({"prometheus_client"}),
    "hopback.runtime.codecs": frozenset({"msgspec", "zstandard"}),
    "hopback.runtime.push": frozenset({"httpx"}),
    "hopback.runtime.message_types": frozenset({"msgspec"}),
    "hopback.runtime.payload": frozenset({"msgspec", "pydantic"}),
    "hopback.runtime.tracing": frozenset({"opentelemetry"}),
    "hopback.store": frozenset({"aiosqlite", "sqlalchemy"}),
    "hopback.store.rows": frozenset({"psycopg"}),
    "hopback.cli": frozenset(
        {"click", "httpx", "msgspec", "rich", "sqlalchemy", "starlette", "uvicorn", "uvloop"}
    ),
    "hopback.cli.celery": frozenset({"celery", "click"}),
    "hopback.systems": frozenset(
        {"httpx", "msgspec", "prometheus_client", "sqlalchemy", "starlette"}
    ),
    "hopback.systems.demo": frozenset(
        {"click", "httpx", "jinja2", "markupsafe", "rich", "starlette", "uvicorn", "uvloop"}
    ),
    "hopback.systems.file_pipeline": frozenset(
        {"PIL", "httpx", "msgspec", "python_multipart", "sqlalchemy", "starlette", "uvicorn"}
    ),
    "hopback.testing": frozenset({"hypothesis", "pytest"}),
}

# Modules for I/O, clocks and randomness, which pure parts must not import.
IMPURE = frozenset(
    {
        "asyncio", "concurrent", "glob", "http", "io", "logging", "os", "pathlib", "platform",
        "queue", "random", "secrets", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl",
        "subprocess", "tempfile", "threading", "time", "urllib", "uuid", "warnings",
    }
)  # fmt: skip


def within(name: str, prefix: str) -> bool:
    """Return whether `name` is `prefix` or a module below it."""
    return name == prefix or name.startswith(prefix + ".")


def entry_for(name: str, table: Mapping[str, object]) -> str:
    """Return the longest prefix in the table that matches the module."""
    return max((prefix for prefix in table if within(name, prefix)), key=len)
