"""The options that specify a topology, which may be a documented system, a file or an application."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

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


_MOST_BYTES = (
    64 * 1024 * 1024
)  # Bytes. The largest known definitions have 20 MiB. Larger files are refused.


@dataclass(frozen=True, slots=True)
class TopologySource:
    """A topology that was specified on the command line."""

    name: str
    hardened: bool = False
    params: tuple[tuple[str, str], ...] = ()
    vhost: str | None = None

    def topology(self) -> Topology:
        """Build the design, read the file or import the application. Fails with exit code 5 if
        there is none of this name.
        """
        from hopback.designs import DESIGNS

        design = DESIGNS.get(self.name)
        if design is not None:
            try:
                return design.build(dict(self.params), hardened=self.hardened)
            except InvalidTopology as error:
                listed = f"`hopback systems {self.name}` lists its parameters."
                raise CommandFailed(str(error), do=listed, code=Exit.USAGE) from error
        path = Path(self.name)
        if path.is_file():
            self._refuse_design_options()
            return _read(path, self.vhost)
        app = self.app()
        if app is not None:
            return app.topology
        if path.suffix.lower() in (".toml", ".json"):
            problem = f"there is no file {self.name!r} in {Path.cwd()}"
        else:
            problem = f"expected a system, a file or an application, found none under the name {self.name!r}"
        known = [*DESIGNS, f"{self.name}:app"] if Path(f"{self.name}.py").is_file() else DESIGNS
        raise CommandFailed(
            problem,
            do=f"{did_you_mean(self.name, known)}Name one of {', '.join(DESIGNS)}, a .toml"
            " or definitions .json file, or an application as MODULE:APP.",
            code=Exit.NOT_FOUND,
        )

    def app(self) -> App | None:
        """Import the application if the name has the form MODULE:APP, otherwise return None."""
        if ":" not in self.name or Path(self.name).is_file():
            return None
        app = load_app(self.name)
        self._refuse_design_options()
        return app

    def _refuse_design_options(self) -> None:
        if self.hardened or self.params:
            option = "--hardened" if self.hardened else "--param"
            raise click.UsageError(
                f"{option} is for a documented system. A file or an application contains its own"
                " topology."
            )


def _read(path: Path, vhost: str | None) -> Topology:
    """Read a TOML file in Hopback's format or a JSON file with RabbitMQ definitions."""
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

        try:
            return read_definitions(text, vhost=vhost, name=path.stem)
        except InvalidTopology as error:
            raise InvalidTopology(error.problems, where=str(path)) from None
    if path.suffix.lower() == ".toml":
        from hopback.topology.document import read_toml

        return read_toml(text, where=str(path))
    raise CommandFailed(
        f"expected a file ending in .toml or .json, got {str(path)!r}",
        do="Name Hopback's own form .toml and RabbitMQ's definitions .json.",
        code=Exit.USAGE,
    )


def topology_source(command: _Command) -> _Command:
    """Add SYSTEM | FILE | MODULE:APP, --hardened and --param to a command, which receives them as
    `source`.
    """

    @wraps(command)
    def call(
        *, name: str, hardened: bool, params: tuple[tuple[str, str], ...], **options: Any
    ) -> object:
        source = TopologySource(name, hardened, params, options.get("vhost"))
        return command(source=source, **options)

    found = cast("_Command", call)
    for option in (
        click.option(
            "--param",
            "params",
            multiple=True,
            callback=_pairs,
            metavar="KEY=VALUE",
            help="Parameter of the system. Repeatable. `hopback systems NAME` lists them.",
        ),
        click.option(
            "--hardened",
            is_flag=True,
            help="Use the form of the system that loses no messages, with the same names.",
        ),
        click.argument("name", metavar="(SYSTEM | FILE | MODULE:APP)", shell_complete=_complete),
    ):
        found = option(found)
    return found


def _pairs(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> object:
    pairs = tuple(tuple(value.split("=", 1)) for value in values)
    for value, pair in zip(values, pairs, strict=True):
        if len(pair) != 2 or not pair[0]:
            raise click.BadParameter(f"expected key=value, got {value!r}.", ctx, option)
    return pairs


def _complete(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[click.shell_completion.CompletionItem]:
    from click.shell_completion import CompletionItem

    from hopback.designs import DESIGNS

    systems = [CompletionItem(name) for name in DESIGNS if name.startswith(incomplete)]
    return [*systems, CompletionItem(incomplete, type="file")]


def broker_version_option(text: str) -> Callable[[_Command], _Command]:
    return click.option("--broker-version", "version", callback=_version, metavar="V", help=text)


def _version(
    ctx: click.Context, option: click.Parameter, value: str | None
) -> BrokerVersion | None:
    try:
        return None if value is None else BrokerVersion.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, option) from error


def vhost_option(command: _Command) -> _Command:
    return click.option(
        "--vhost",
        metavar="V",
        help="Virtual host to read from definitions and to write into them.",
    )(command)
