"""A client of the gateway in virtual time, with the consumers behind it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from hopback.systems.file_pipeline.gateway import gateway
from hopback.systems.web import opened
from tests.systems.file_pipeline.running_pipeline import Pipeline, pipeline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["GatewayClient", "open_gateway", "part"]


@dataclass(frozen=True, slots=True)
class GatewayClient:
    """An HTTP client, and the system behind the gateway."""

    client: httpx.AsyncClient
    system: Pipeline

    async def upload(self, content: bytes, name: str, kind: str) -> httpx.Response:
        """Upload a file as a browser does."""
        return await self.client.post("/files", files={"file": (name, content, kind)})

    async def send(self, body: bytes, content_type: str = "multipart/form-data; boundary=b") -> int:
        """Send a form unchanged and return the status of the answer."""
        answer = await self.client.post(
            "/files", content=body, headers={"content-type": content_type}
        )
        assert answer.status_code == 202 or answer.json()["error"]
        return answer.status_code

    async def upload_and_settle(self, content: bytes, name: str, kind: str) -> dict[str, Any]:
        """Upload a file, wait until all messages are settled, and return the file's state."""
        answer = await self.upload(content, name, kind)
        assert answer.status_code == 202, answer.text
        await self.system.settle()
        shown = await self.client.get(answer.headers["location"])
        found: dict[str, Any] = shown.json()
        return found

    def files_on_disk(self) -> list[str]:
        """Return all files in the folder except the database."""
        root = self.system.folder.root
        paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return sorted(str(path) for path in paths if "file-pipeline.db" not in path.name)


def part(name: str, filename: str, kind: str, content: bytes) -> bytes:
    """Return one part of a form with the boundary `b`."""
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n'
    return head.encode() + f"Content-Type: {kind}\r\n\r\n".encode() + content + b"\r\n"


@asynccontextmanager
async def open_gateway(folder: Path, **settings: Any) -> AsyncIterator[GatewayClient]:
    """Run the complete system with its gateway."""
    async with pipeline(folder, **settings) as system:
        web = gateway(system.runtime.settings, system.test.broker, system.runtime.clock)
        transport = httpx.ASGITransport(app=web)
        async with (
            opened(web),
            httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
        ):
            yield GatewayClient(client, system)
