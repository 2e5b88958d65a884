"""The whole pipeline on the embedded broker in virtual time, and what to look at."""

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


__all__ = ["Pipeline", "hostile", "pipeline"]


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
    """The system at work."""

    def __init__(self, test: AppTest, runtime: PartRuntime) -> None:
        self.test = test
        self.runtime = runtime

    @property
    def folder(self) -> StoredFiles:
        """The paths of its files."""
        return StoredFiles(self.runtime.settings.folder)

    def now(self) -> float:
        """The time of the pipeline."""
        return self.runtime.clock.now()

    async def upload(
        self, content: bytes, name: str, declared: str, *, received: bool = True
    ) -> str:
        """Put a file where the gateway would, and ask for its upload; its id."""
        file_id = str(uuid.uuid4())
        if received:
            self.runtime.storage.receive(file_id, io.BytesIO(content))
        command = UploadRequested(file_id, 1, name, declared)
        await self.send(message_of(command, producer="gateway", now=self.now()))
        return file_id

    async def send(self, message: Message) -> None:
        """Publish as a producer does."""
        self.test._producer.send(message)
        await asyncio.sleep(1e-5)

    async def redrive(self, queue: str) -> None:
        """Send the oldest dead letter of a queue back, as the design says."""
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
        """Have a copy of every event from now on."""
        connection = await self.test.broker.connect("listener")
        channel = await connection.open_channel()
        await channel.declare_queue(Queue("listener"))
        await channel.bind(Binding("domain.events", "listener", "#"))
        await connection.close()

    def events(self) -> list[Message]:
        """Every event that was published so far."""
        stored = self.test.broker.snapshot().queue("listener").messages
        return [
            Message("domain.events", one.routing_key, one.body, one.properties) for one in stored
        ]

    def log(self) -> list[Mapping[str, Any]]:
        """What the process would have logged, line by line."""
        stream = io.StringIO()
        log = JsonLog(self.runtime.clock, stream=stream)
        for one in self.test.events:
            log(one.name, one.fields)
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    async def settle(self) -> None:
        """Let everything play out: queues, retries, and what the outbox still holds."""
        outbox = Outbox(self.runtime.database.engine, "test", self.runtime.clock)
        while True:
            await self.test.drain()
            if not await outbox.depth():
                return
            await asyncio.sleep(0.01)

    async def rows(self, table: Table) -> list[Mapping[str, Any]]:
        """Everything in a table."""
        async with self.runtime.database.engine.connect() as connection:
            found = (await connection.execute(select(table))).mappings().all()
        return [dict(row) for row in found]

    async def file(self, file_id: str) -> Mapping[str, Any]:
        """What the read model says of a file."""
        return next(row for row in await self.rows(files) if row["file_id"] == file_id)

    async def told(self) -> list[str]:
        """The types of what people were told."""
        return [row["type"] for row in await self.rows(notifications)]

    async def audited(self) -> list[str]:
        """The types of what the audit holds, sorted."""
        return sorted(row["type"] for row in await self.rows(audit))

    def dead(self) -> dict[str, int]:
        """How many dead letters each queue has; those without are left out."""
        queues = {name: len(self.test.dead_letters(name)) for name in self.test.app.handlers}
        return {name: count for name, count in queues.items() if count}

    def runs(self, queue: str) -> int:
        """How often deliveries of a queue were concluded."""
        names = {"delivery.done", "delivery.retried", "delivery.parked"}
        return sum(one.name in names and one.fields["queue"] == queue for one in self.test.events)


@asynccontextmanager
async def pipeline(
    folder: Path, *, broker: EmbeddedBroker | None = None, **settings: Any
) -> AsyncIterator[Pipeline]:
    """The pipeline at work in a folder, on an embedded broker."""
    runtime = PartRuntime(PipelineSettings(folder=folder, **settings), LoopClock(lambda: 0.0))
    async with AppTest(create_consumers(runtime), broker=broker or EmbeddedBroker()) as test:
        system = Pipeline(test, runtime)
        await system.listen()
        yield system


def hostile(body: bytes | None) -> Message:
    """An uploaded file, as somebody says who is not to be trusted."""
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
