"""What the broker holds, as JSON has it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

__all__ = ["NODE", "plain", "table"]

NODE = "hopback@localhost"
"""The name of the only node."""


def plain(value: object) -> object:
    """A field value as JSON has it; bytes that are no text in base64."""
    if isinstance(value, Mapping):
        return table(value)
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def table(value: Mapping[str, object]) -> dict[str, Any]:
    """A field table as JSON has it."""
    return {str(key): plain(inner) for key, inner in value.items()}
