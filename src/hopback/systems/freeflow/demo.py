"""Runs FreeFlow in one process, with sample traffic in which some events fail on purpose."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from typing import Any

import httpx

from hopback.systems.freeflow.api import create_api
from hopback.systems.freeflow.consumers import create_consumers
from hopback.systems.freeflow.settings import FreeFlowSettings
from hopback.systems.host import Host, Part, System, Try, run_together

_EVERY = 4.0
"""Seconds between two events, so that a reader can follow each one."""


async def _traffic(host: Host) -> None:
    async with httpx.AsyncClient(base_url=host.url, trust_env=False) as client:
        for routing_key, data in _story():
            await client.post(f"/events/{routing_key}", json=data)
            await asyncio.sleep(_EVERY)


def _story() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of a working day, repeated forever."""
    run = random.getrandbits(32)
    for day in itertools.count():
        user, paper, flow = (f"{what}-{run}-{day}" for what in ("user", "paper", "flow"))
        yield "auth.succeeded", {"user": user}  # too early, so it is retried after 30 s
        yield "user.registered", {"id": user, "name": f"User {day}"}
        yield "document.created", {"id": paper, "title": "Minutes", "text": "all agreed"}
        # not recoverable, because it has no title
        yield "document.created", {"id": f"{paper}-untitled"}
        yield "workflow.started", {"id": flow, "owner": f"{user}@example.org", "steps": 2}
        yield "workflow.advanced", {"id": flow}
        yield "workflow.advanced", {"id": flow}  # the last step notifies the owner
        # retried in 5 min
        yield "notification.requested", {"to": "busy@example.org", "text": "lunch"}
        for _ in range(3):
            yield "auth.failed", {"user": user}  # the third one raises an alarm
        yield "audit.checked", {"day": day}


SYSTEM = System(
    "freeflow",
    "events of seven domains, retried after 30 s, 5 min and 30 min",
    (
        Part("hopback.systems.freeflow.parts:create_web", "publishing over HTTP", is_web=True),
        Part("hopback.systems.freeflow.parts:domains", "handles every domain"),
    ),
    run_together(FreeFlowSettings, create_api, create_consumers),
    _traffic,
    (
        Try(
            "a document",
            "curl {url}/events/document.created"
            ' -d \'{"id": "d1", "title": "Report", "text": "all is well"}\'',
        ),
        Try("the documents", "curl {url}/documents"),
        Try(
            "an archive before its document: retried after 30 s",
            'curl {url}/events/document.archived -d \'{"id": "d2"}\'',
        ),
    ),
)
