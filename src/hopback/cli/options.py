"""What several commands understand: a topology, a broker, a form, an address."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.errors import ConnectionFailed, InvalidTopology
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hopback.broker.management import Management
    from hopback.broker.port import Connection
    from hopback.designs import Design
    from hopback.topology.model import Topology

__all__ = [
    "EMBEDDED",
    "Access",
    "HttpAddress",
    "Reached",
    "Target",
    "broker_options",
    "broker_version_option",
    "format_option",
    "reach",
    "reach_management",
    "topology_target",
    "vhost_option",
]

_Command = TypeVar("_Command", bound="Callable[..., object]")
_MOST_BYTES = 64 * 1024 * 1024


def _version(
    ctx: click.Context, option: click.Parameter, value: str | None
) -> BrokerVersion | None:
    try:
        return None if value is None else BrokerVersion.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, option) from error


@dataclass(frozen=True, slots=True)
class Target:
    """The words a user said; `topology()` turns them into data."""

    name: str
    hardened: bool = False
    params: tuple[tuple[str, str], ...] = ()
    vhost: str | None = None

    def topology(self) -> Topology:
        """The design or the file's content; CommandFailed (5) if there is neither."""
        from hopback.designs import DESIGNS

        design = DESIGNS.get(self.name)
        if design is not None:
            return self._built(design)
        if self.hardened or self.params:
            self._refuse_design_options()
        return _read(self._path(), self.vhost)

    def _built(self, design: Design) -> Topology:
        try:
            return design.build(dict(self.params), hardened=self.hardened)
        except InvalidTopology as error:
            listed = f"`hopback systems {self.name}` lists its parameters."
            raise CommandFailed(str(error), do=listed, code=Exit.USAGE) from error

    def _path(self) -> Path:
        path = Path(self.name)
        if not path.is_file():
            raise CommandFailed(
                f"expected a system or a file, found neither under the name {self.name!r}",
                do=_suggestion(self.name),
                code=Exit.NOT_FOUND,
            )
        return path

    def _refuse_design_options(self) -> None:
        self._path()
        option = "--hardened" if self.hardened else "--param"
        raise click.UsageError(
            f"{option} is for a documented system; a file says itself what it declares."
        )


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    from hopback.designs import DESIGNS

    close = get_close_matches(name, DESIGNS, n=1)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}Name one of {', '.join(DESIGNS)}, or a .toml or definitions .json file."


def _read(path: Path, vhost: str | None) -> Topology:
    """A TOML file is Hopback's own form, a JSON file RabbitMQ's definitions."""
    text = _text(path)
    if path.suffix.lower() == ".json":
        from hopback.topology.definitions import read_definitions

        return read_definitions(text, vhost=vhost, name=path.stem)
    if path.suffix.lower() == ".toml":
        from hopback.topology.toml import read_toml

        return read_toml(text, where=str(path))
    raise CommandFailed(
        f"expected a file ending in .toml or .json, got {str(path)!r}",
        do="Name Hopback's own form .toml and RabbitMQ's definitions .json.",
        code=Exit.USAGE,
    )


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()[: _MOST_BYTES + 1]
        if len(data) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandFailed(
            f"{path} cannot be read: {reason}", do="Check the file: it must be UTF-8 text."
        ) from error


def _param(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> object:
    """`key=value` texts as pairs."""
    pairs = tuple(tuple(value.split("=", 1)) for value in values)
    for value, pair in zip(values, pairs, strict=True):
        if len(pair) != 2 or not pair[0]:
            raise click.BadParameter(f"expected key=value, got {value!r}.", ctx, option)
    return pairs


def topology_target(command: _Command) -> _Command:
    """Give a command SYSTEM | FILE, --hardened and --param."""
    for option in (
        click.option(
            "--param",
            "params",
            multiple=True,
            callback=_param,
            metavar="KEY=VALUE",
            help="A parameter of the system; repeatable. `hopback systems NAME` lists them.",
        ),
        click.option(
            "--hardened",
            is_flag=True,
            help="The form of the system that loses nothing, under the same names.",
        ),
        click.argument("name", metavar="(SYSTEM | FILE)", shell_complete=_complete),
    ):
        command = option(command)
    return command


def _complete(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[click.shell_completion.CompletionItem]:
    """Names of systems, and files."""
    from click.shell_completion import CompletionItem

    from hopback.designs import DESIGNS

    systems = [CompletionItem(name) for name in DESIGNS if name.startswith(incomplete)]
    return [*systems, CompletionItem(incomplete, type="file")]


def broker_version_option(text: str) -> Callable[[_Command], _Command]:
    """The option --broker-version, with what it means for this command."""
    return click.option("--broker-version", "version", callback=_version, metavar="V", help=text)


def vhost_option(command: _Command) -> _Command:
    """The option --vhost, for definitions."""
    return click.option(
        "--vhost",
        metavar="V",
        help="For definitions: the virtual host to read, and to name in what is written.",
    )(command)


def format_option(*choices: str) -> Callable[[_Command], _Command]:
    """The option -o, --format; the first choice is the default."""
    return click.option(
        "-o",
        "--format",
        "form",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="What to print.",
    )


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


EMBEDDED = "embedded"
"""The broker URL that stands for the broker inside the process."""


class HttpAddress(click.ParamType[tuple[str, int]]):
    """`PORT` (on loopback) or `HOST:PORT`."""

    name = "[host:]port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Host and port; 0 takes a free port."""
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not port.isdecimal() or int(port) > 65_535:
            self.fail(f"expected PORT or HOST:PORT, got {value!r}", param, ctx)
        return host.strip("[]") or "127.0.0.1", int(port)
