"""TLS: verified by default, and a certificate can log in. Against our own server role."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import pytest

from hopback.broker.rabbitmq import RabbitMQ
from hopback.errors import ConnectionFailed
from hopback.wire import Side, WireConnection
from hopback.wire.handshake import ServerHandshake
from hopback.wire.transport import Wire
from tests.integration.certificates import certificates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hopback.errors import BrokerError
    from hopback.wire import Event

__all__ = ["certificates"]


class _Server:
    """The least server: it shakes hands and remembers who came."""

    def __init__(self, users: list[str]) -> None:
        core = WireConnection(Side.SERVER)
        self._users = users
        self.wire = Wire(core, self)
        self._handshake = ServerHandshake(
            core, self._authenticate, properties={"version": "4.0.5"}, mechanisms="PLAIN EXTERNAL"
        )

    def _authenticate(self, mechanism: str, response: bytes) -> str | None:
        self._users.append(f"{mechanism}:{response.decode()}")
        return "someone"

    def on_event(self, event: Event) -> None:
        self._handshake.on_event(event)

    def on_writable(self) -> None:
        """Ignore the event."""

    def on_lost(self, error: BrokerError | None) -> None:
        """The client has gone."""


class _Listener:
    """A TLS listener on a free port. `users` contains the logins."""

    def __init__(self, port: int, users: list[str]) -> None:
        self.port = port
        self.users = users


@pytest.fixture
async def listener(certificates: Path) -> AsyncIterator[_Listener]:
    """It asks for a client certificate and takes none as well."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    users: list[str] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: _Server(users).wire, "127.0.0.1", 0, ssl=context
    )
    yield _Listener(server.sockets[0].getsockname()[1], users)
    server.close()


async def test_certificate_of_unknown_authority_is_refused(listener: _Listener) -> None:
    """Verification is the default. No login is sent."""
    with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
        await RabbitMQ(f"amqps://localhost:{listener.port}").connect()
    assert listener.users == []


async def test_certificate_of_another_name_is_refused(
    listener: _Listener, certificates: Path
) -> None:
    url = f"amqps://127.0.0.1:{listener.port}?cacertfile={certificates / 'ca.pem'}"
    with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
        await RabbitMQ(url).connect()
    for name in ("localhost", "disable"):
        connection = await RabbitMQ(f"{url}&server_name_indication={name}").connect()
        await connection.close()


async def test_verified_server_is_accepted(listener: _Listener, certificates: Path) -> None:
    url = f"amqps://ann:secret@localhost:{listener.port}?cacertfile={certificates / 'ca.pem'}"
    connection = await RabbitMQ(url).connect()
    await connection.close()
    assert listener.users == ["PLAIN:\0ann\0secret"]


async def test_verify_none_accepts_any_certificate(listener: _Listener) -> None:
    url = f"amqps://localhost:{listener.port}?verify=verify_none"
    connection = await RabbitMQ(url).connect()
    await connection.close()


async def test_client_certificate_logs_in_by_external(
    listener: _Listener, certificates: Path
) -> None:
    options = "&".join(
        f"{name}={certificates / file}"
        for name, file in (
            ("cacertfile", "ca.pem"),
            ("certfile", "cert.pem"),
            ("keyfile", "key.pem"),
        )
    )
    url = f"amqps://localhost:{listener.port}?auth_mechanism=external&{options}"
    connection = await RabbitMQ(url).connect()
    await connection.close()
    assert listener.users == ["EXTERNAL:"]


async def test_missing_ca_file_is_named() -> None:
    with pytest.raises(ConnectionFailed, match=r"/nowhere/ca\.pem"):
        await RabbitMQ("amqps://localhost:1?cacertfile=/nowhere/ca.pem").connect()
