"""The raffle on the embedded broker in virtual time: consumer, HTTP API and a SQLite database."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from hopback.systems.raffle.api import create_api
from hopback.systems.raffle.consumer import create_consumer
from hopback.systems.raffle.settings import RaffleSettings
from hopback.systems.web import opened
from hopback.testing import AppTest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["RunningRaffle", "run_raffle", "settings_in"]


def settings_in(folder: Path, **changes: Any) -> RaffleSettings:
    """Return the documented settings with a database in the folder."""
    return RaffleSettings(database=f"sqlite:///{folder}/raffle.db", **changes)


@dataclass(frozen=True, slots=True)
class RunningRaffle:
    """The test kit of the consumer and a client of the API."""

    test: AppTest
    client: httpx.AsyncClient
    settings: RaffleSettings

    async def create_user(self, name: str, email: str = "") -> str:
        """Create a user over HTTP and return its ID."""
        body = {"name": name, "email": email or f"{name.lower()}@email.com"}
        answer = await self.client.post("/api/v1/users", json=body)
        assert answer.status_code == 200, answer.text
        user_id: str = answer.json()["id"]
        return user_id

    async def user(self, user_id: str) -> httpx.Response:
        """Get a user over HTTP."""
        return await self.client.get(f"/api/v1/users/{user_id}")

    async def enqueue(self, body: object) -> None:
        """Publish a message as another program does."""
        await self.test.publish("raffle_queue", body, exchange="raffle_exchange")

    def messages_in(self, queue: str) -> list[Any]:
        """Return the messages of a queue."""
        return list(self.test.broker.snapshot().queue(queue).messages)


@asynccontextmanager
async def run_raffle(settings: RaffleSettings) -> AsyncIterator[RunningRaffle]:
    """Run consumer and API."""
    async with (
        AppTest(create_consumer(settings)) as test,
        opened(create_api(settings, test.broker)) as web,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(web), base_url="http://raffle.test"
        ) as client,
    ):
        yield RunningRaffle(test, client, settings)
