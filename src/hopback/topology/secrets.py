"""What a definitions file holds and no screen should show: password hashes, credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.topology.wording import quoted

if TYPE_CHECKING:
    from hopback.topology.model import Topology

__all__ = ["without_secrets"]

_CREDENTIALS = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_TELLING = ("password", "secret", "token")
_OF_USERS = ("users", "permissions", "topic_permissions")


def without_secrets(topology: Topology) -> tuple[Topology, tuple[str, ...]]:
    """The topology without what carries a secret, and a note for each thing left out.

    Users go together with their permissions: a broker refuses permissions of users it does not know.
    """
    kept: dict[str, object] = {}
    notes: list[str] = []
    hide_users = _has_secret(topology.foreign.get("users"))
    if hide_users:
        notes.append("users and their permissions left out: they carry password hashes")
    for section, value in topology.foreign.items():
        if hide_users and section in _OF_USERS:
            continue
        if isinstance(value, tuple):
            kept[section] = tuple(one for one in value if not _has_secret(one))
            notes += [_note(section, one) for one in value if _has_secret(one)]
        elif _has_secret(value):
            notes.append(_note(section, value))
        else:
            kept[section] = value
    return replace(topology, foreign=MappingProxyType(kept)), tuple(notes)


def _note(section: str, entry: object) -> str:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    what = f"{section} {quoted(name)}" if isinstance(name, str) else f"an entry of {section}"
    return f"{what} left out: it carries a secret"


def _has_secret(value: object) -> bool:
    if isinstance(value, str):
        return _CREDENTIALS.search(value) is not None
    if isinstance(value, Mapping):
        named = any(word in str(key).lower() for key in value for word in _TELLING)
        return named or any(map(_has_secret, value.values()))
    return isinstance(value, tuple) and any(map(_has_secret, value))
