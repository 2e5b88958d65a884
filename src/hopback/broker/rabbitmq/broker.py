"""Connect to RabbitMQ. Supports several hosts, TLS and a timeout for the handshake."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from hopback.broker.rabbitmq.connection import ANSWER_TIMEOUT_S, RabbitConnection
from hopback.durations import Duration, read_seconds
from hopback.errors import ConnectionFailed, InvalidDeclaration, LoginRefused, Problem
from hopback.wire.handshake import Credentials, Secret
from hopback.wire.transport import tls_context
from hopback.wire.url import Address, InvalidUrl, parse_url

if TYPE_CHECKING:
    from collections.abc import Sequence


_LOG = logging.getLogger("hopback.broker.rabbitmq")
_AMQP_PORT = 5672
"""The default port of AMQP."""


class RabbitMQ:
    """A RabbitMQ node, or several nodes of a cluster.

    `url` is a URL or a list of URLs. The first one contains the credentials, the virtual host and
    all options. Additional ones are only used for their hosts. `password` is a function that
    replaces the password in the URL, and is called for each connection. `window` is the maximum
    number of unconfirmed messages per channel. `confirm_timeout` applies to confirms and
    `answer_timeout` to all other responses.
    """

    def __init__(
        self,
        url: str | Sequence[str] = "amqp://guest:guest@localhost:5672/",
        *,
        password: Secret | None = None,
        window: int = 500,
        confirm_timeout: Duration = 30.0,
        answer_timeout: Duration = ANSWER_TIMEOUT_S,
    ) -> None:
        self._address = _address(url, password)
        where = "RabbitMQ"
        if window < 1:
            problem = Problem("window", "at least 1 message", str(window))
            raise InvalidDeclaration((problem,), where=where)
        self._window = window
        self._confirm_timeout = read_seconds(
            confirm_timeout, "confirm_timeout", where=where, zero=False
        )
        self._answer_timeout = read_seconds(
            answer_timeout, "answer_timeout", where=where, zero=False
        )
        self._warned = False

    def __repr__(self) -> str:
        return f"RabbitMQ({self.address!r})"

    @property
    def address(self) -> str:
        """The address for display. Does not contain the password."""
        return str(self._address)

    async def connect(self, name: str = "hopback") -> RabbitConnection:
        """Connect to the first host that responds. If there is none, ConnectionFailed contains all
        errors.
        """
        failures: list[str] = []
        refused = True
        hosts = self._address.hosts
        for host, port in hosts:
            try:
                return await self._connect_to(host, port, name)
            except (ConnectionFailed, OSError) as error:
                # If there is only one host, the address already shows it.
                which = f"{host}:{port}: " if len(hosts) > 1 else ""
                reason = str(error) or type(error).__name__
                if isinstance(error, ConnectionError) and error.errno is not None:
                    # The text from asyncio contains the address again, so use the reason from the
                    # operating system.
                    reason = os.strerror(error.errno)
                elif getattr(error, "reason", "") == "WRONG_VERSION_NUMBER":
                    reason = (
                        f"the port {port} does not speak TLS. Use amqp://, or the port for TLS,"
                        " usually 5671"
                    )
                failures.append(which + reason)
                refused = refused and isinstance(error, LoginRefused)
        kind = LoginRefused if refused else ConnectionFailed
        raise kind(f"no connection to {self.address}: {'; '.join(failures)}")

    async def _connect_to(self, host: str, port: int, name: str) -> RabbitConnection:
        address = self._address
        # Warn once if the password is sent to another machine over an unencrypted connection.
        plain = self._address.tls is None and self._address.credentials.mechanism == "PLAIN"
        if plain and not self._warned and not _is_loopback(host):
            self._warned = True
            _LOG.warning(
                "the password for %s crosses the network unencrypted, use amqps://", self.address
            )
        connection = RabbitConnection(
            address,
            name,
            window=self._window,
            confirm_timeout=self._confirm_timeout,
            answer_timeout=self._answer_timeout,
        )
        try:
            async with asyncio.timeout(address.connection_timeout):
                await self._dial(host, port, connection)
                await connection.opened
        except TimeoutError:
            connection.wire.abort()
            waited = f"no answer within {address.connection_timeout:g} s (connection_timeout)"
            advice = "" if connection.has_broker else _port_advice(port)
            raise ConnectionFailed(waited + advice) from None
        except ConnectionFailed as error:
            connection.wire.abort()
            advice = _port_advice(port)
            if connection.has_broker or not advice:
                raise
            raise ConnectionFailed(f"{error}{advice}") from error
        except BaseException:
            connection.wire.abort()
            raise
        return connection

    async def _dial(self, host: str, port: int, connection: RabbitConnection) -> None:
        loop = asyncio.get_running_loop()
        tls = self._address.tls
        if tls is None:
            await loop.create_connection(lambda: connection.wire, host, port)
            return
        context = tls_context(tls)
        name = host if tls.server_name is None else tls.server_name
        await loop.create_connection(
            lambda: connection.wire, host, port, ssl=context, server_hostname=name
        )


def _address(url: str | Sequence[str], password: Secret | None) -> Address:
    urls = [url] if isinstance(url, str) else list(url)
    try:
        if not urls:
            raise InvalidUrl("at least one", "none")
        found = [parse_url(one) for one in urls]
    except InvalidUrl as error:
        raise InvalidDeclaration((error.problem,), where="RabbitMQ") from None
    hosts = tuple(host for one in found for host in one.hosts)
    first = replace(found[0], hosts=hosts)
    if password is not None:
        user = first.credentials.user
        first = replace(first, credentials=Credentials(user, password, first.credentials.mechanism))
    return first


def _port_advice(port: int) -> str:
    """Give advice for a port that does not speak AMQP."""
    if port == _AMQP_PORT:
        return ""
    return (
        f". Check the port {port}: AMQP usually has {_AMQP_PORT}, with TLS (amqps://) 5671. 15672 is the"
        " management API, 25672 is for other nodes"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
