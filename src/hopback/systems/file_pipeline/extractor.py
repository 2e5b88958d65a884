"""The extractor: finds the metadata of a file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import Any

from hopback import App
from hopback.systems.file_pipeline.contents import is_image
from hopback.systems.file_pipeline.messages import (
    FileValidated,
    MetadataExtracted,
    PipelineMessage,
    payload_of,
)
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.pictures import describe_picture
from hopback.systems.file_pipeline.stages import stage


def add_extractor(app: App, runtime: PartRuntime) -> None:
    """Add the handler of `q.extractor`."""

    async def work(event: PipelineMessage) -> list[MetadataExtracted]:
        file: FileValidated = payload_of(event, FileValidated)
        content = await asyncio.to_thread(runtime.storage.read, file.fileId)
        found = await asyncio.to_thread(
            metadata_of, content, file.contentType, runtime.settings.max_pixels
        )
        return [MetadataExtracted(file.fileId, file.run, found)]

    stage(app, runtime, "q.extractor", work, producer="extractor")


def metadata_of(content: bytes, content_type: str, max_pixels: int) -> dict[str, Any]:
    """Return checksums, and details of pictures, texts, JSON and PDF files."""
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
