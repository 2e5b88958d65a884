"""What several commands understand: a topology, a broker, an address to listen on, a form of output."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.errors import ConnectionFailed, InvalidTopology
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from hopback.broker.management import Management
    from hopback.broker.named_brokers import NamedBroker
    from hopback.broker.port import Connection
    from hopback.broker.rabbitmq import RabbitMQ
    from hopback.runtime.app import App
    from hopback.topology.model import Topology

_Command = TypeVar("_Command", bound="Callable[..., object]")

# Definitions of the largest brokers known have some 20 MiB; a file that was named by mistake, a disk
# image for example, must not fill the memory.
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TopologySource:
    """What the user said of a topology; `topology()` builds or reads it."""

    name: str
    hardened: bool = False
    params: tuple[tuple[str, str], ...] = ()
    vhost: str | None = None

    def topology(self) -> Topology:
        """The design, what the file holds or what the application declares; CommandFailed (5) if
        there is none of them."""
        from hopback.designs import DESIGNS

        design = DESIGNS.get(self.name)
        if design is not None:
            try:
                return design.build(dict(self.params), hardened=self.hardened)
            except InvalidTopology as error:
                listed = f"`hopback systems {self.name}` lists its parameters."
                raise CommandFailed(str(error), do=listed, code=Exit.USAGE) from error
        path = Path(self.name)
        app = None if path.is_file() else self.app()
        if app is None and not path.is_file():
            raise CommandFailed(
                f"expected a system, a file or an application, found none under the name {self.name!r}",
                do=f"{did_you_mean(self.name, DESIGNS)}Name one of {', '.join(DESIGNS)}, a .toml"
                " or definitions .json file, or an application as MODULE:APP.",
                code=Exit.NOT_FOUND,
            )
        if self.hardened or self.params:
            option = "--hardened" if self.hardened else "--param"
            raise click.UsageError(
                f"{option} is for a documented system; a file or an application says itself what it"
                " declares."
            )
        return _read(path, self.vhost) if app is None else app.topology

    def app(self) -> App | None:
        """The application that is named as MODULE:APP; None where something else is named."""
        if ":" not in self.name or Path(self.name).is_file():
            return None
        from hopback.cli.run import load_app

        return load_app(self.name)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question that helps after a typing error, with a space behind it; empty if nothing is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1)
    return f"Did you mean {close[0]}? " if close else ""


def _read(path: Path, vhost: str | None) -> Topology:
    """A TOML file is Hopback's own form, a JSON file RabbitMQ's definitions."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes")
        text = data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandFailed(
            f"{path} cannot be read: {reason}", do="Check the file: it must be UTF-8 text."
        ) from error
    if path.suffix.lower() == ".json":
        from hopback.topology.definitions import read_definitions

        return read_definitions(text, vhost=vhost, name=path.stem)
    if path.suffix.lower() == ".toml":
        from hopback.topology.document import read_toml

        return read_toml(text, where=str(path))
    raise CommandFailed(
        f"expected a file ending in .toml or .json, got {str(path)!r}",
        do="Name Hopback's own form .toml and RabbitMQ's definitions .json.",
        code=Exit.USAGE,
    )


def topology_source(command: _Command) -> _Command:
    """Give a command SYSTEM | FILE | MODULE:APP, --hardened and --param: a `TopologySource`."""
    return topology_source_as("(SYSTEM | FILE | MODULE:APP)")(command)


def topology_source_as(metavar: str) -> Callable[[_Command], _Command]:
    """The same for a command that calls its argument otherwise."""
    return partial(_with_source, metavar)


def _with_source(metavar: str, command: _Command) -> _Command:
    for option in (
        click.option(
            "--param",
            "params",
            multiple=True,
            callback=_pairs,
            metavar="KEY=VALUE",
            help="A parameter of the system; repeatable. `hopback systems NAME` lists them.",
        ),
        click.option(
            "--hardened",
            is_flag=True,
            help="The form of the system that loses nothing, under the same names.",
        ),
        click.argument("name", metavar=metavar, shell_complete=_complete),
    ):
        command = option(command)
    return command


def _pairs(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> object:
    """`key=value` texts as pairs."""
    pairs = tuple(tuple(value.split("=", 1)) for value in values)
    for value, pair in zip(values, pairs, strict=True):
        if len(pair) != 2 or not pair[0]:
            raise click.BadParameter(f"expected key=value, got {value!r}.", ctx, option)
    return pairs


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


def _version(
    ctx: click.Context, option: click.Parameter, value: str | None
) -> BrokerVersion | None:
    try:
        return None if value is None else BrokerVersion.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, option) from error


def vhost_option(command: _Command) -> _Command:
    """The option --vhost, for definitions."""
    return click.option(
        "--vhost",
        metavar="V",
        help="For definitions: the virtual host to read, and to name in what is written.",
    )(command)


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


def url_host(host: str, port: int) -> str:
    """Host and port as they stand in a URL: an IPv6 address in brackets."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def header_pairs(said: tuple[str, ...]) -> dict[str, str]:
    """What repeated options `--header NAME=TEXT` say."""
    found = {}
    for text in said:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"expected NAME=TEXT, got {text!r}.", param_hint="--header")
        found[name] = value
    return found


def cannot_listen(address: tuple[str, int], reason: str) -> CommandFailed:
    """The error of a command that gets no socket for --http."""
    return CommandFailed(
        f"cannot listen on {url_host(*address)}: {reason}",
        do="Take another port with --http, or end what listens there.",
        code=Exit.CONFLICT,
    )


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


def log_format_option(command: _Command) -> _Command:
    """The option --log-format of what runs until it is stopped."""
    return click.option(
        "--log-format",
        type=click.Choice(("auto", "json", "text")),
        default="auto",
        show_default=True,
        help="JSON lines, or short ones for people; by default those on a terminal.",
    )(command)
