"""The options that specify a broker, either by its address or by its name in a settings file, and
functions to connect to it.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import did_you_mean, group_options
from hopback.errors import ConnectionFailed, InvalidDeclaration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hopback.broker.management import Management
    from hopback.broker.named_brokers import BrokerSettings
    from hopback.broker.port import Connection
    from hopback.broker.rabbitmq import RabbitMQ

_Command = TypeVar("_Command", bound="Callable[..., object]")


EMBEDDED = "embedded"
"""The value of --broker for a broker that runs inside of the process."""


@dataclass(frozen=True, slots=True)
class Access:
    """The values of the options that specify a broker."""

    broker: str
    management: str | None = None
    amqp_only: bool = False


@dataclass(frozen=True, slots=True)
class Reached:
    """A connection to a broker. `management` is None if the management API is not used."""

    address: str
    vhost: str
    connection: Connection
    management: Management | None


config_option = click.option(
    "--config",
    envvar="HOPBACK_CONFIG",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file that defines [[brokers]] for --broker. Also HOPBACK_CONFIG.",
)
management_option = click.option(
    "--management",
    envvar="HOPBACK_MANAGEMENT",
    metavar="URL",
    help="http(s):// address of the management API. Default: the broker's host.",
)
amqp_only_option = click.option(
    "--amqp-only",
    is_flag=True,
    help="Do not use the management API. Commands then know only declared and named queues.",
)


def broker_option(*, name_in: str, required: bool) -> Callable[[_Command], _Command]:
    """Return the option --broker. `name_in` explains in the help text where names are defined.

    Without `name_in`, the option accepts only an address.
    """
    or_name = f", or a name {name_in}" if name_in else ""
    return click.option(
        "--broker",
        envvar="HOPBACK_BROKER",
        required=required,
        metavar="URL|NAME" if name_in else "URL",
        help=f"amqp(s):// address{or_name}. HOPBACK_BROKER keeps it out of process lists.",
    )


def _access(broker: str, management: str | None, amqp_only: bool, config: Path | None) -> Access:
    if config is not None and is_broker_name(broker):
        named = find_named_broker(broker, config)
        management = management or named.management or None
        return Access(named.url, management, amqp_only or named.amqp_only)
    return Access(broker, management, amqp_only)


broker_options = group_options(
    "access",
    _access,
    broker_option(name_in="in --config", required=True),
    management_option,
    amqp_only_option,
    config_option,
)
"""Adds --broker, --management, --amqp-only and --config to a command, which receives them as
`access`.
"""


def is_broker_name(value: str | None) -> bool:
    """Return True if the value of --broker is a name, not an address."""
    return value is not None and "://" not in value and value != EMBEDDED


def find_named_broker(name: str, config: Path | None) -> BrokerSettings:
    from hopback.broker.named_brokers import read_brokers

    if config is None:
        raise click.BadParameter(
            f"expected amqp://… or amqps://…, or with --config the name of a broker, got {name!r}.",
            param_hint="--broker",
        )
    known = {each.name: each for each in read_brokers(config, os.environ)}
    if name not in known:
        listed = ", ".join(list(known)[:20]) or "none"
        raise CommandFailed(
            f"expected the name of a broker in {config} ({listed}), got {name!r}",
            do=f"{did_you_mean(name, known)}Name one of [[brokers]], or give an amqp(s):// address.",
            code=Exit.NOT_FOUND,
        )
    return known[name]


def rabbitmq(url: str) -> RabbitMQ:
    """Return a RabbitMQ broker for an address without connecting to it. An invalid address is a
    usage error.
    """
    from hopback.broker.management import virtual_host
    from hopback.broker.rabbitmq import RabbitMQ

    try:
        virtual_host(url)  # raises ValueError if the virtual host is invalid
        return RabbitMQ(url)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--broker") from error
    except InvalidDeclaration as error:
        raise click.BadParameter(f"{error.problems[0]}.", param_hint="--broker") from error


@asynccontextmanager
async def reach(access: Access) -> AsyncIterator[Reached]:
    """Connect with AMQP and, unless --amqp-only is given, to the management API."""
    from hopback.broker.management import virtual_host

    broker = rabbitmq(access.broker)
    async with AsyncExitStack() as stack:
        connection = await broker.connect("hopback command")
        stack.push_async_callback(connection.close)
        management = await reach_management(access, stack)
        yield Reached(broker.address, virtual_host(access.broker), connection, management)


async def reach_management(
    access: Access, stack: AsyncExitStack, *, ask: bool = True
) -> Management | None:
    """Open the management API until the stack is closed.

    If its address was derived from the broker's and there is no response, print a warning and
    return None. If `ask` is False, the API is not contacted. A service can then start while its
    broker is unavailable.
    """
    from hopback.broker.management import Management, ManagementAddress

    if access.amqp_only:
        return None
    try:
        address = ManagementAddress.derive(access.broker, access.management)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--management") from error
    client = await stack.enter_async_context(Management(address))
    if not ask:
        return client
    try:
        await client.overview()
    except ConnectionFailed as error:
        if access.management is not None:
            raise
        click.echo(f"Warning: {error} Continuing with AMQP only.", err=True)
        return None
    return client
