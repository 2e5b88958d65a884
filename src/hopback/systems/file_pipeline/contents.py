"""The content of a file: its accepted types, whether it matches the declared type, and its metadata."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from hopback.systems.file_pipeline.pictures import describe_picture

TYPES: Mapping[str, tuple[str, ...]] = {
    "image/png": (".png",),
    "image/jpeg": (".jpg", ".jpeg"),
    "image/gif": (".gif",),
    "image/webp": (".webp",),
    "application/pdf": (".pdf",),
    "application/json": (".json",),
    "text/csv": (".csv",),
    "text/plain": (".txt", ".log", ".md"),
}
"""All accepted types and the endings of their file names."""

_TEXTUAL = frozenset({"application/json", "text/csv", "text/plain"})
_MAGIC = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"%PDF-", "application/pdf"),
)
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")
"""A control character other than tab, line feed, form feed and carriage return."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a file is rejected, as a code and as a sentence."""

    code: str
    reason: str


def is_image(content_type: str) -> bool:
    return content_type.startswith("image/")


def sniff(content: bytes) -> str | None:
    """Detect the type of a content. Returns None if it is unknown."""
    for offset, magic, found in _MAGIC:
        if content[offset : offset + len(magic)] == magic:
            return found if found != "image/webp" or content[:4] == b"RIFF" else None
    # Anything else must be UTF-8 text without control characters.
    if not content or _CONTROL.search(content):
        return None
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return "text/plain"


def judge(name: str, declared: str, content: bytes, max_bytes: int) -> Rejection | None:
    """Return why a file is rejected, or None if its content matches its declared type."""
    ending = PurePath(name).suffix.lower()
    if not content:
        return Rejection("EMPTY_FILE", "The file is empty.")
    if len(content) > max_bytes:
        return Rejection("TOO_LARGE", f"Expected at most {max_bytes} bytes, got {len(content)}.")
    if declared not in TYPES:
        return Rejection("UNSUPPORTED_TYPE", f"Files of type {declared[:80]!r} are not accepted.")
    if ending not in TYPES[declared]:
        expected = " or ".join(TYPES[declared])
        return Rejection(
            "EXTENSION_MISMATCH", f"Expected a name ending in {expected}, got {ending[:20]!r}."
        )
    found = sniff(content)
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
    return None


def metadata_of(content: bytes, content_type: str, max_pixels: int) -> dict[str, Any]:
    """Return the checksums of a file, and more details if it is a picture, a text, JSON or PDF."""
    found: dict[str, Any] = {
        "contentType": content_type,
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(),
    }
    if is_image(content_type):
        found["image"] = describe_picture(content, max_pixels)
    elif content_type == "application/pdf":
        found["pdf"] = {"version": content[5:8].decode("ascii", "replace")}
    else:
        text = content.decode("utf-8", "replace")
        lines = text.splitlines()
        found["text"] = {
            "characters": len(text),
            "words": len(re.findall(r"\w+", text)),
            "lines": len(lines),
            "longestLine": max(map(len, lines), default=0),
        }
    if content_type == "application/json":
        value = json.loads(content)
        size = len(value) if isinstance(value, dict | list | str) else 1
        found["json"] = {"kind": type(value).__name__, "size": size}
    return found
