"""The options that name a broker: its address or its name in a settings file, and how a command connects."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import did_you_mean
from hopback.errors import ConnectionFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hopback.broker.management import Management
    from hopback.broker.named_brokers import NamedBroker
    from hopback.broker.port import Connection
    from hopback.broker.rabbitmq import RabbitMQ

_Command = TypeVar("_Command", bound="Callable[..., object]")


EMBEDDED = "embedded"
"""The broker URL that stands for the broker inside the process."""


LOCAL_BROKER = "amqp://guest:guest@127.0.0.1:5672/"
"""A broker on this machine as RabbitMQ is installed, and where `--broker embedded` listens if it can."""


@dataclass(frozen=True, slots=True)
class Access:
    """What the user said of the broker."""

    broker: str
    management: str | None = None
    amqp_only: bool = False


@dataclass(frozen=True, slots=True)
class Reached:
    """A broker that answers; `management` is None where there is only AMQP."""

    address: str
    vhost: str
    connection: Connection
    management: Management | None


config_option = click.option(
    "--config",
    envvar="HOPBACK_CONFIG",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file whose [[brokers]] can be named with --broker; also HOPBACK_CONFIG.",
)


def is_broker_name(said: str | None) -> bool:
    """Whether what was said of a broker is its name in a settings file, and no address."""
    return said is not None and "://" not in said and said != EMBEDDED


def named_broker(name: str, config: Path | None) -> NamedBroker:
    """The broker of that name in the settings file; CommandFailed where there is none."""
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


def broker_options(command: _Command) -> _Command:
    """Give a command --broker, --management and --amqp-only: the fields of an `Access`.

    --broker may be a name in the file of --config, which then says the rest as well.
    """

    @wraps(command)
    def called(*, config: Path | None, **said: Any) -> object:
        if is_broker_name(said["broker"]) and config is not None:
            chosen = named_broker(said["broker"], config)
            said["broker"] = chosen.url
            said["management"] = said["management"] or chosen.management
            said["amqp_only"] = said["amqp_only"] or chosen.amqp_only
        return command(**said)

    found = cast("_Command", called)
    for option in (
        config_option,
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
            metavar="URL|NAME",
            help="amqp(s):// address, or a name in --config; also from HOPBACK_BROKER, which keeps it"
            " out of process lists.",
        ),
    ):
        found = option(found)
    return found


def rabbitmq(url: str) -> RabbitMQ:
    """The RabbitMQ at that address, not yet connected; an address that is none is a usage error."""
    from hopback.broker.management import virtual_host
    from hopback.broker.rabbitmq import RabbitMQ

    try:
        virtual_host(url)  # what has none to be read is refused as well
        return RabbitMQ(url)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--broker") from error


@asynccontextmanager
async def reach(access: Access) -> AsyncIterator[Reached]:
    """Connect by AMQP and, unless told otherwise, to the management API."""
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
    """The management API, open as long as the stack is.

    One whose address was only guessed and that does not answer is done without, and said so. Without
    `ask` it is taken to be there: what is served for weeks may begin while a broker is away.
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
        click.echo(f"Warning: {error} Going on with AMQP alone.", err=True)
        return None
    return client
