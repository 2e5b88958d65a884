"""`hopback broker` with users that may not do everything, given at the start or in definitions."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import BrokerServer, Permission, ServerSettings
from hopback.errors import BrokerError, ConnectionFailed
from hopback.message import Message
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.socket

_SETTINGS = ServerSettings(
    port=0,
    http_port=0,
    users={"guest": "guest", "ann": "p"},
    vhosts=("/", "shop"),
    permissions={("ann", "shop"): Permission("^$", "^amq.default$", "^orders$")},
)


def _as(url: str, user: str, vhost: str) -> str:
    password = "guest" if user == "guest" else "p"
    return f"{url.replace('amqp://', f'amqp://{user}:{password}@')}/{vhost}"


async def test_virtual_hosts_are_separate_and_permissions_hold() -> None:
    async with BrokerServer(_SETTINGS) as server:
        for vhost in ("%2F", "shop"):
            connection = await RabbitMQ(_as(server.url, "guest", vhost)).connect()
            channel = await connection.open_channel()
            assert (await channel.declare_queue(Queue("orders"))).messages == 0
            await channel.publish(Message("", "orders", vhost.encode()))
            await connection.close()
        connection = await RabbitMQ(_as(server.url, "ann", "shop")).connect()
        channel = await connection.open_channel()
        taken = await channel.get("orders")
        assert taken is not None
        assert taken.body == b"shop"
        with pytest.raises(BrokerError, match=r"403.*configure access to queue 'mine'"):
            await channel.declare_queue(Queue("mine"))
        await connection.close()
        with pytest.raises(ConnectionFailed, match="530"):
            await RabbitMQ(_as(server.url, "ann", "%2F")).connect()
        async with httpx.AsyncClient(base_url=f"{server.http_url}/api") as http:
            refused = await http.get("/whoami", auth=("ann", "p"))
            listed = await http.get("/queues", auth=("guest", "guest"))
        assert refused.json()["reason"] == "Not management user"
        assert [(each["vhost"], each["messages"]) for each in listed.json()] == [
            ("/", 1),
            ("shop", 1),
        ]


async def test_definitions_are_exported_and_imported_with_users() -> None:
    async with BrokerServer(_SETTINGS) as server:
        connection = await RabbitMQ(_as(server.url, "guest", "shop")).connect()
        await (await connection.open_channel()).declare_queue(Queue("orders"))
        await connection.close()
        async with httpx.AsyncClient(base_url=f"{server.http_url}/api") as http:
            told = (await http.get("/definitions", auth=("guest", "guest"))).json()
    async with BrokerServer(ServerSettings(port=0, http_port=None)) as server:
        server.load(told)
        connection = await RabbitMQ(_as(server.url, "ann", "shop")).connect()
        assert await (await connection.open_channel()).get("orders") is None
        await connection.close()
        with pytest.raises(ValueError, match="virtual hosts that are there"):
            server.load({"queues": [{"name": "q", "vhost": "missing", "durable": True}]})


async def test_imported_definitions_keep_password_of_initial_user() -> None:
    """Definitions of production must not lock the developer out."""
    async with BrokerServer(ServerSettings(port=0, http_port=None)) as server:
        server.load(
            {
                "users": [{"name": "guest", "password_hash": "", "tags": []}],
                "vhosts": [{"name": "shop"}],
                "permissions": [
                    {"user": "guest", "vhost": "shop", "configure": "", "write": "", "read": ""}
                ],
            }
        )
        connection = await RabbitMQ(_as(server.url, "guest", "shop")).connect()
        await (await connection.open_channel()).declare_queue(Queue("orders"))
        await connection.close()


def test_broker_command_accepts_users_and_virtual_hosts(tmp_path: Path) -> None:
    options = ["--user", "guest:guest", "--user", "ann:p", "--vhost", "shop"]
    rights = ["--permission", "ann", "shop", "^$", "", "^orders$", "--tags", "ann", "monitoring"]
    command = [sys.executable, "-m", "hopback", "broker", "--port", "0", "--http", "0"]
    with subprocess.Popen(
        [*command, *options, *rights], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        http_url = lines[2].split()[-1]
        try:
            with httpx.Client(base_url=f"{http_url}/api", auth=("ann", "p")) as http:
                assert http.get("/whoami").json()["tags"] == ["monitoring"]
                assert [each["name"] for each in http.get("/vhosts").json()] == ["/", "shop"]
                assert http.get("/permissions").status_code == 401
                refused = http.put("/queues/shop/q", content=json.dumps({}))
                assert refused.json()["reason"] == "Access refused."
        finally:
            process.terminate()
