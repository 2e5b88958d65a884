"""The options that name a topology: a documented system, a file or an application."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from hopback.cli.app_loading import load_app
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import did_you_mean
from hopback.errors import InvalidTopology
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Callable

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

        return load_app(self.name)


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
