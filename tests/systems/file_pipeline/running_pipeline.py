"""The complete pipeline on the embedded broker in virtual time."""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from hopback import Message
from hopback.broker import EmbeddedBroker
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.observe.logs import JsonLog
from hopback.policy import RedriveOccasion, redrive_message
from hopback.runtime import Properties
from hopback.store import Outbox
from hopback.systems.file_pipeline.consumers import create_consumers
from hopback.systems.file_pipeline.messages import UploadRequested, message_of
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.tables import audit, files, notifications
from hopback.testing import AppTest
from hopback.topology import Binding, Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from sqlalchemy import Table


__all__ = ["Pipeline", "hostile_message", "pipeline"]


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """The paths of files in a folder."""

    root: Path

    def incoming(self, file_id: str) -> Path:
        return self.root / "incoming" / file_id

    def file(self, file_id: str) -> Path:
        return self.root / "files" / file_id

    def thumbnail(self, file_id: str) -> Path:
        return self.root / "thumbnails" / f"{file_id}.png"


class Pipeline:
    """The running pipeline and its state."""

    def __init__(self, test: AppTest, runtime: PartRuntime) -> None:
        self.test = test
        self.runtime = runtime

    @property
    def folder(self) -> StoredFiles:
        """The paths of the pipeline's files."""
        return StoredFiles(self.runtime.settings.folder)

    def now(self) -> float:
        """Return the time of the pipeline."""
        return self.runtime.clock.now()

    async def upload(
        self, content: bytes, name: str, declared: str, *, received: bool = True
    ) -> str:
        """Store a file like the gateway, request its upload, and return its ID."""
        file_id = str(uuid.uuid4())
        if received:
            self.runtime.storage.receive(file_id, io.BytesIO(content))
        command = UploadRequested(file_id, 1, name, declared)
        await self.send(message_of(command, producer="gateway", now=self.now()))
        return file_id

    async def send(self, message: Message) -> None:
        """Publish like a producer."""
        self.test._producer.send(message)
        await asyncio.sleep(1e-5)

    async def redrive(self, queue: str) -> None:
        """Re-drive the oldest dead letter of a queue by the design."""
        connection = await self.test.broker.connect("operator")
        channel = await connection.open_channel()
        plan = self.test.app.topology.plan(queue)
        assert plan is not None
        delivery = await channel.get(plan.parking.queue)
        assert delivery is not None
        await channel.publish(redrive_message(delivery, plan, RedriveOccasion(self.now(), "job")))
        channel.ack(delivery.tag)
        await connection.close()

    async def listen(self) -> None:
        """Bind a queue that receives a copy of every event."""
        connection = await self.test.broker.connect("listener")
        channel = await connection.open_channel()
        await channel.declare_queue(Queue("listener"))
        await channel.bind(Binding("domain.events", "listener", "#"))
        await connection.close()

    def events(self) -> list[Message]:
        """Return all events published so far."""
        stored = self.test.broker.snapshot().queue("listener").messages
        return [
            Message("domain.events", one.routing_key, one.body, one.properties) for one in stored
        ]

    def log(self) -> list[Mapping[str, Any]]:
        """Return the JSON lines that the process would log."""
        stream = io.StringIO()
        log = JsonLog(self.runtime.clock, stream=stream)
        for one in self.test.events:
            log(one.name, one.fields)
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    async def settle(self) -> None:
        """Wait until queues, retries and the outbox are empty."""
        outbox = Outbox(self.runtime.database.engine, "test", self.runtime.clock)
        while True:
            await self.test.drain()
            if not await outbox.depth():
                return
            await asyncio.sleep(0.01)

    async def rows(self, table: Table) -> list[Mapping[str, Any]]:
        async with self.runtime.database.engine.connect() as connection:
            found = (await connection.execute(select(table))).mappings().all()
        return [dict(row) for row in found]

    async def file(self, file_id: str) -> Mapping[str, Any]:
        """Return the row of a file in the read model."""
        return next(row for row in await self.rows(files) if row["file_id"] == file_id)

    async def notification_types(self) -> list[str]:
        """Return the types of all notifications."""
        return [row["type"] for row in await self.rows(notifications)]

    async def audit_types(self) -> list[str]:
        """Return the types of all audited events, sorted."""
        return sorted(row["type"] for row in await self.rows(audit))

    def dead_letter_counts(self) -> dict[str, int]:
        """Return the number of dead letters of each queue that has any."""
        queues = {name: len(self.test.dead_letters(name)) for name in self.test.app.handlers}
        return {name: count for name, count in queues.items() if count}

    def runs(self, queue: str) -> int:
        """Return the number of settled deliveries of a queue."""
        names = {"delivery.done", "delivery.retried", "delivery.parked"}
        return sum(one.name in names and one.fields["queue"] == queue for one in self.test.events)


@asynccontextmanager
async def pipeline(
    folder: Path, *, broker: EmbeddedBroker | None = None, **settings: Any
) -> AsyncIterator[Pipeline]:
    """Run the pipeline in a folder, on an embedded broker."""
    runtime = PartRuntime(PipelineSettings(folder=folder, **settings), LoopClock(lambda: 0.0))
    async with AppTest(create_consumers(runtime), broker=broker or EmbeddedBroker()) as test:
        system = Pipeline(test, runtime)
        await system.listen()
        yield system


def hostile_message(body: bytes | None) -> Message:
    """Return a `FileUploaded` event with an invalid body or file ID."""
    envelope = {
        "messageId": "m-1",
        "kind": "event",
        "type": "FileUploaded.v1",
        "occurredAt": "2024-01-01T00:00:00Z",
        "correlationId": "c-1",
        "producer": "mallory",
        "version": 1,
        "payload": {"fileId": ["../../etc/passwd"]},
    }
    properties = Properties(message_id="m-1", type="FileUploaded.v1", delivery_mode=2)
    content = json.dumps(envelope).encode() if body is None else body
    return Message("domain.events", "files.uploaded.v1", content, properties)
