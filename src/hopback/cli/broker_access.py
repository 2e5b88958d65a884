"""How a command reaches a live broker: options, and one connection with its management API."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from hopback.errors import ConnectionFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hopback.broker.management import Management
    from hopback.broker.port import Connection

__all__ = ["Access", "Reached", "broker_options", "reach", "reach_management"]

_Command = TypeVar("_Command", bound="Callable[..., object]")


@dataclass(frozen=True, slots=True)
class Access:
    """What the user said of the broker."""

    broker: str
    management: str | None = None
    amqp_only: bool = False


@dataclass(frozen=True, slots=True)
class Reached:
    """A broker within reach; `management` is None where only AMQP is to be had."""

    address: str
    vhost: str
    connection: Connection
    management: Management | None


def broker_options(command: _Command) -> _Command:
    """Give a command --broker, --management and --amqp-only."""
    for option in (
        click.option(
            "--amqp-only", is_flag=True, help="Do without the management API: less can be seen."
        ),
        click.option(
            "--management",
            envvar="HOPBACK_MANAGEMENT",
            metavar="URL",
            help="http(s):// address of the management API; by default the broker's host.",
        ),
        click.option(
            "--broker",
            envvar="HOPBACK_BROKER",
            required=True,
            metavar="URL",
            help="amqp(s):// address; also from HOPBACK_BROKER, which keeps it out of process lists.",
        ),
    ):
        command = option(command)
    return command


@asynccontextmanager
async def reach(access: Access) -> AsyncIterator[Reached]:
    """Connect by AMQP and, unless told otherwise, to the management API.

    A management API that was only guessed and does not answer is done without, and said so.
    """
    from hopback.broker.management import virtual_host
    from hopback.broker.rabbitmq import RabbitMQ

    try:
        vhost, broker = virtual_host(access.broker), RabbitMQ(access.broker)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--broker") from error
    async with AsyncExitStack() as stack:
        connection = await broker.connect("hopback command")
        stack.push_async_callback(connection.close)
        management = await reach_management(access, stack)
        yield Reached(broker.address, vhost, connection, management)


async def reach_management(access: Access, stack: AsyncExitStack) -> Management | None:
    """The management API, open as long as the stack is; None where there is none to be had."""
    from hopback.broker.management import Management, ManagementAddress

    if access.amqp_only:
        return None
    try:
        address = ManagementAddress.derive(access.broker, access.management)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--management") from error
    client = await stack.enter_async_context(Management(address))
    try:
        await client.overview()
    except ConnectionFailed as error:
        if access.management is not None:
            raise
        click.echo(f"Warning: {error} Going on with AMQP alone.", err=True)
        return None
    return client
