"""Runs the file pipeline in one process, with sample traffic in which some files fail on purpose."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import httpx
from PIL import Image

from hopback.systems.file_pipeline.consumers import create_consumers
from hopback.systems.file_pipeline.gateway import gateway
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.host import Host, Part, Running, System, Try, running
from hopback.systems.web import opened

_EVERY_S = 4.0
"""Seconds between two files, so that a reader can follow each one through all parts."""
_PARTS_MODULE = "hopback.systems.file_pipeline.parts"


@asynccontextmanager
async def _start(host: Host) -> AsyncIterator[Running]:
    read = PipelineSettings.read(host.variables)
    settings = replace(read, database=host.database, folder=host.folder, hardened=host.hardened)
    runtime = PartRuntime(settings, host.environment.clock)
    web = gateway(settings, host.broker, host.environment.clock)
    async with running(host, create_consumers(runtime)) as service, opened(web):
        yield Running((service,), web)


async def _traffic(host: Host) -> None:
    """Upload pictures and texts. One file has the wrong type, and one is a picture that Pillow
    can't decode.
    """
    good = _picture()
    broken = good[: len(good) // 2]
    files = (
        ("holiday.png", good, "image/png"),
        ("notes.txt", b"Buy cheese.\nCall the broker.\n", "text/plain"),
        ("report.pdf", good, "application/pdf"),
        ("order.json", b'{"id": 7, "items": [1, 2, 3]}', "application/json"),
        ("broken.png", broken, "image/png"),
        ("table.csv", b"name,amount\nana,3\nbruno,5\n", "text/csv"),
    )
    async with httpx.AsyncClient(base_url=host.url, trust_env=False) as client:
        for number, (name, content, kind) in enumerate(itertools.cycle(files), 1):
            shown = f"{number}-{name}"
            with suppress(httpx.TransportError):  # the gateway may not have started yet
                await client.post("/files", files={"file": (shown, content, kind)})
            await asyncio.sleep(_EVERY_S)


def _picture() -> bytes:
    """Return a gradient as a PNG file."""
    target = io.BytesIO()
    Image.radial_gradient("L").resize((120, 90)).save(target, "PNG")
    return target.getvalue()


SYSTEM = System(
    "file-pipeline",
    "uploaded files, processed by seven consumers with separate retries",
    (
        Part(
            f"{_PARTS_MODULE}:create_gateway", "uploads, status of files, dead letters", is_web=True
        ),
        Part(f"{_PARTS_MODULE}:upload", "stores received files"),
        Part(f"{_PARTS_MODULE}:validator", "compares the content with the declared type"),
        Part(f"{_PARTS_MODULE}:thumbnail", "draws thumbnails"),
        Part(f"{_PARTS_MODULE}:extractor", "extracts metadata"),
        Part(
            f"{_PARTS_MODULE}:projection", "keeps the read model, detects completion and timeouts"
        ),
        Part(f"{_PARTS_MODULE}:notification", "notifies users"),
        Part(f"{_PARTS_MODULE}:audit", "records every event"),
    ),
    _start,
    _traffic,
    (
        Try("the files, newest first", "curl {url}/files"),
        Try("the notifications", "curl {url}/notifications"),
        Try(
            "a text is processed within a second",
            "echo hello > hello.txt && curl -F 'file=@hello.txt;type=text/plain' {url}/files",
        ),
        Try(
            "a picture without pixels is in q.thumbnail.dlq and q.extractor.dlq after 30 s",
            "printf '\\211PNG\\r\\n\\032\\n' > bad.png"
            " && curl -F 'file=@bad.png;type=image/png' {url}/files",
        ),
    ),
)
