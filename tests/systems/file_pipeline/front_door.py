"""The gateway as a client meets it, in virtual time, with the consumers behind it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from hopback.systems.file_pipeline.gateway import gateway
from hopback.systems.web import opened
from tests.systems.file_pipeline.playing import Pipeline, pipeline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["FrontDoor", "front_door", "part"]


@dataclass(frozen=True, slots=True)
class FrontDoor:
    """A client, and the system behind the door."""

    client: httpx.AsyncClient
    system: Pipeline

    async def upload(self, content: bytes, name: str, kind: str) -> httpx.Response:
        """Send a file as a browser does."""
        return await self.client.post("/files", files={"file": (name, content, kind)})

    async def send(self, body: bytes, content_type: str = "multipart/form-data; boundary=b") -> int:
        """Send a form byte by byte as given; the status of the answer."""
        answer = await self.client.post(
            "/files", content=body, headers={"content-type": content_type}
        )
        assert answer.status_code == 202 or answer.json()["error"]
        return answer.status_code

    async def done(self, content: bytes, name: str, kind: str) -> dict[str, Any]:
        """Send a file, wait until everything has played out, and return what became of it."""
        answer = await self.upload(content, name, kind)
        assert answer.status_code == 202, answer.text
        await self.system.settle()
        shown = await self.client.get(answer.headers["location"])
        found: dict[str, Any] = shown.json()
        return found

    def on_disk(self) -> list[str]:
        """Everything in the folder but the database."""
        root = self.system.folder.root
        paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return sorted(str(path) for path in paths if "file-pipeline.db" not in path.name)


def part(name: str, filename: str, kind: str, content: bytes) -> bytes:
    """One part of a form, with the boundary `b`."""
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n'
    return head.encode() + f"Content-Type: {kind}\r\n\r\n".encode() + content + b"\r\n"


@asynccontextmanager
async def front_door(folder: Path, **settings: Any) -> AsyncIterator[FrontDoor]:
    """The whole system with its gateway."""
    async with pipeline(folder, **settings) as system:
        web = gateway(system.runtime.settings, system.test.broker, system.runtime.clock)
        transport = httpx.ASGITransport(app=web)
        async with (
            opened(web),
            httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
        ):
            yield FrontDoor(client, system)
