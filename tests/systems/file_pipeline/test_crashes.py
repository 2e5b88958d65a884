"""After lost connections, ended processes and broker outages each change is applied once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import httpx
import pytest

from hopback.broker import EmbeddedBroker
from hopback.broker.embedded.virtual_time import LoopClock
from hopback.store import Outbox
from hopback.systems.file_pipeline.gateway import gateway
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.web import opened
from hopback.testing import Fault, in_virtual_time
from tests.systems.file_pipeline.running_pipeline import pipeline
from tests.systems.file_pipeline.samples import png

if TYPE_CHECKING:
    from pathlib import Path

_FILES = 8


@pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
@in_virtual_time
async def test_repeated_connection_losses_apply_each_change_once(
    tmp_path: Path, hardened: bool
) -> None:
    """Cut before settlement, nacked, cut after publish: each file is completed, notified and
    audited once.
    """
    async with pipeline(tmp_path, hardened=hardened) as system:
        faults = system.test.broker.faults
        faults.chance(Fault.CUT_BEFORE_SETTLE, 0.05)
        faults.chance(Fault.NACK, 0.1)
        faults.chance(Fault.CUT_AFTER_PUBLISH, 0.05)
        uploaded = [await system.upload(png(), f"{n}.png", "image/png") for n in range(_FILES)]
        await system.settle()
        faults.clear()
        await system.settle()
        statuses = [(await system.file(file_id))["status"] for file_id in uploaded]
        assert statuses == ["completed"] * _FILES
        assert await system.notification_types() == ["ProcessingCompleted.v1"] * _FILES
        assert set(Counter(await system.audit_types()).values()) == {_FILES}
        assert system.dead_letter_counts() == {}
        assert system.runs("q.audit") > 5 * _FILES  # some messages were redelivered


@in_virtual_time
async def test_outbox_of_stopped_process_is_published_at_next_start(tmp_path: Path) -> None:
    """The next process publishes the outbox, and the file is completed."""
    broker = EmbeddedBroker()
    clock = LoopClock(lambda: 0.0)
    settings = PipelineSettings(folder=tmp_path)
    web = gateway(settings, broker, clock)
    transport = httpx.ASGITransport(app=web)
    async with (
        opened(web),
        httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
    ):
        # The exchange is not declared yet, so the broker refuses the command.
        form = {"file": ("a.png", png(), "image/png")}
        where = (await client.post("/files", files=form)).headers["location"]
        assert (await client.get(where)).json()["status"] == "accepted"
    async with pipeline(tmp_path, broker=broker) as system:
        await system.settle()
        assert (await system.file(where.rpartition("/")[2]))["status"] == "completed"
        assert await Outbox(system.runtime.database.engine, "test", clock).depth() == 0


@in_virtual_time
async def test_gateway_accepts_files_while_broker_is_down(tmp_path: Path) -> None:
    """The command waits in the outbox until the broker is reachable again."""
    async with pipeline(tmp_path) as system:
        broker = system.test.broker
        web = gateway(system.runtime.settings, broker, system.runtime.clock)
        transport = httpx.ASGITransport(app=web)
        async with (
            opened(web),
            httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
        ):
            broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
            broker.cut()
            form = {"file": ("a.png", png(), "image/png")}
            answer = await client.post("/files", files=form)
            assert answer.status_code == 202
            await system.test.advance(120)
            where = answer.headers["location"]
            assert (await client.get(where)).json()["status"] == "accepted"
            broker.faults.clear()
            await system.test.advance(120)
            await system.settle()
            assert (await client.get(where)).json()["status"] == "completed"
