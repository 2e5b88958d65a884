"""Detect the type of a file from its content and compare it with the declared type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType

HEAD_BYTES = 65_536
"""How many bytes of a file `sniff` needs."""


@dataclass(frozen=True, slots=True)
class FileType:
    """An accepted file type with its file name extensions."""

    endings: tuple[str, ...]
    image: bool = False


TYPES: Mapping[str, FileType] = MappingProxyType(
    {
        "image/png": FileType((".png",), image=True),
        "image/jpeg": FileType((".jpg", ".jpeg"), image=True),
        "image/gif": FileType((".gif",), image=True),
        "image/webp": FileType((".webp",), image=True),
        "application/pdf": FileType((".pdf",)),
        "application/json": FileType((".json",)),
        "text/csv": FileType((".csv",)),
        "text/plain": FileType((".txt", ".log", ".md")),
    }
)
"""All accepted types."""

_TEXTUAL = frozenset({"application/json", "text/csv", "text/plain"})
_MAGIC = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"%PDF-", "application/pdf"),
)
_CONTROLS = frozenset(range(32)) - {9, 10, 12, 13} | {127}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a file is rejected, as a code and as a sentence."""

    code: str
    reason: str


def is_image(content_type: str | None) -> bool:
    taken = TYPES.get(content_type or "")
    return taken is not None and taken.image


def sniff(head: bytes) -> str | None:
    """Detect the type from the first bytes. Returns None if it is unknown."""
    for offset, magic, found in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return found if found != "image/webp" or head[:4] == b"RIFF" else None
    # Anything else must be UTF-8 text without control characters. The last character may be cut
    # off.
    if not head or _CONTROLS & set(head):
        return None
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        is_cut = len(head) >= HEAD_BYTES and error.start >= len(head) - 3
        return "text/plain" if is_cut else None
    return "text/plain"


def judge(name: str, declared: str, content: bytes, max_bytes: int) -> Rejection | str:
    """Return the declared type if the file matches it, otherwise the reason for the rejection."""
    ending = PurePath(name).suffix.lower()
    if not content:
        return Rejection("EMPTY_FILE", "The file is empty.")
    if len(content) > max_bytes:
        return Rejection("TOO_LARGE", f"Expected at most {max_bytes} bytes, got {len(content)}.")
    if declared not in TYPES:
        return Rejection("UNSUPPORTED_TYPE", f"Files of type {declared[:80]!r} are not accepted.")
    if ending not in TYPES[declared].endings:
        expected = " or ".join(TYPES[declared].endings)
        return Rejection(
            "EXTENSION_MISMATCH", f"Expected a name ending in {expected}, got {ending[:20]!r}."
        )
    found = sniff(content[:HEAD_BYTES])
    if found is None:
        return Rejection(
            "UNKNOWN_CONTENT",
            f"The declared type is {declared}, but the type of the content is unknown.",
        )
    if found != declared and not (found == "text/plain" and declared in _TEXTUAL):
        return Rejection(
            "TYPE_MISMATCH", f"The declared type is {declared}, but the content is {found}."
        )
    if declared == "application/json":
        try:
            json.loads(content)
        except (ValueError, RecursionError):
            return Rejection(
                "INVALID_JSON",
                "The declared type is application/json, but the content is not valid JSON.",
            )
    return declared
