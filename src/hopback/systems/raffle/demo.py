"""Runs the raffle in one process, with sample traffic in which some messages fail on purpose."""

from __future__ import annotations

import asyncio
import itertools
import random

import httpx

from hopback import Message, Publisher
from hopback.systems.host import Host, Part, System, Try, run_together
from hopback.systems.raffle.api import create_api
from hopback.systems.raffle.consumer import create_consumer
from hopback.systems.raffle.settings import RaffleSettings

_NAMES = ("Ana", "Bruno", "Carla", "Davi", "Elisa", "Fábio", "Gabriela", "Heitor", "Inês", "João")
_EVERY = 5.0
"""Seconds between two users, so that a reader can follow each one."""


async def _traffic(host: Host) -> None:
    """Create users and raffles. Some e-mail addresses are already in use, and some messages are not
    valid JSON.
    """
    async with (
        httpx.AsyncClient(base_url=host.url, trust_env=False) as client,
        Publisher(host.broker, name="raffle traffic") as publisher,
    ):
        run = random.getrandbits(32)
        for number in itertools.count():
            email = f"user{number}.{run}@example.org" if number % 10 else "ana@example.org"
            await client.post("/api/v1/users", json={"name": random.choice(_NAMES), "email": email})
            if number % 7 == 3:
                await publisher.send(Message("raffle_exchange", "raffle_queue", b'{"name": Ana'))
            if number % 5 == 4:
                # Create a raffle with three new users and draw it once they have been inserted.
                created = await client.post("/api/v1/raffles", json={"name": "A bicycle"})
                raffle = f"/api/v1/raffles/{created.json()['id']}"
                tag = random.getrandbits(32)
                users = [
                    await client.post(
                        "/api/v1/users", json={"name": name, "email": f"{name}.{tag}@example.org"}
                    )
                    for name in random.sample(_NAMES, 3)
                ]
                await asyncio.sleep(_EVERY)
                for user in users:
                    await client.post(f"{raffle}/entries", json={"userId": user.json()["id"]})
                await client.post(f"{raffle}/draw", json={"winners": 1})
            await asyncio.sleep(_EVERY)


SYSTEM = System(
    "raffle",
    "users sent over HTTP and inserted in batches, with raffles to draw",
    (
        Part("hopback.systems.raffle.parts:create_web", "the HTTP API", is_web=True),
        Part("hopback.systems.raffle.parts:consumer", "inserts users in batches"),
        Part("hopback.systems.raffle.parts:dead_letters", "inserts dead letters; by hand"),
    ),
    run_together(RaffleSettings, create_api, create_consumer),
    _traffic,
    (
        Try(
            "a user is published, and inserted within a second",
            'curl {url}/api/v1/users -d \'{"name": "Zoe", "email": "zoe@example.org"}\'',
        ),
        Try(
            "the same e-mail again: retried three times, then in raffle_dlq",
            'curl {url}/api/v1/users -d \'{"name": "Zoe", "email": "zoe@example.org"}\'',
        ),
    ),
)
