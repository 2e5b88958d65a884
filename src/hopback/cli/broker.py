"""The command `hopback broker`, which runs the embedded broker on a port until it is stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import WholeNumber
from hopback.text import one_line as safe
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hopback.broker.server import ServerSettings

_MIB = 1024 * 1024
"""Bytes. The sizes in options are in mebibytes."""


class _UserType(click.ParamType[tuple[str, str]]):
    """An option value like `NAME:PASSWORD`."""

    name = "name:password"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Parse a name and a password. The error message shows neither of them."""
        if isinstance(value, tuple):
            return value
        name, colon, password = str(value).partition(":")
        if not name or not colon:
            self.fail("expected NAME:PASSWORD, got something else", param, ctx)
        return name, password


class _VersionType(click.ParamType[BrokerVersion]):
    name = "version"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> BrokerVersion:
        if isinstance(value, BrokerVersion):
            return value
        try:
            return BrokerVersion.parse(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


@click.command(short_help="Run an in-memory AMQP broker for development and tests.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on. There is no TLS."
)
@click.option(
    "--port",
    type=WholeNumber(0, 65_535),
    default=5672,
    show_default=True,
    help="AMQP port. 0 chooses a free one.",
)
@click.option(
    "--http",
    type=WholeNumber(0, 65_535),
    default=15672,
    show_default=True,
    help="Port of the management API and the clock. 0 chooses a free one.",
)
@click.option("--no-http", is_flag=True, help="Disable the management API and the clock control.")
@click.option(
    "--profile",
    type=_VersionType(),
    default="4.0",
    show_default=True,
    metavar="V",
    help="RabbitMQ version to emulate.",
)
@click.option(
    "--clock",
    type=click.Choice(("system", "virtual", "auto")),
    default="system",
    show_default=True,
    help="System time, time controlled by POST /clock/advance, or time that skips idle periods.",
)
@click.option(
    "--user",
    "users",
    type=_UserType(),
    multiple=True,
    envvar="HOPBACK_BROKER_USERS",
    metavar="NAME:PASSWORD",
    help="User to create instead of guest. Repeatable. Also HOPBACK_BROKER_USERS,"
    " separated by spaces.",
)
@click.option(
    "--vhost",
    "vhosts",
    multiple=True,
    metavar="NAME",
    help="Additional virtual host. Repeatable.",
)
@click.option(
    "--permission",
    "permissions",
    nargs=5,
    multiple=True,
    metavar="USER VHOST CONFIGURE WRITE READ",
    help="Restrict a user by three patterns. Repeatable.",
)
@click.option(
    "--tags",
    nargs=2,
    multiple=True,
    metavar="USER TAG,TAG",
    help="Tags of a user. Default: administrator, or none for users with --permission.",
)
@click.option(
    "--definitions",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Load RabbitMQ definitions at the start.",
)
@click.option(
    "--memory",
    type=WholeNumber(min=1),
    default=1024,
    show_default=True,
    metavar="MIB",
    help="Memory of messages above which publishers are blocked.",
)
@click.option(
    "--max-message",
    type=WholeNumber(min=1),
    metavar="MIB",
    help="Maximum body size. Default: that of the emulated version.",
)
@click.option(
    "--connections",
    type=WholeNumber(min=1),
    default=4096,
    show_default=True,
    metavar="N",
    help="Maximum number of connections.",
)
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="warning",
    show_default=True,
    help="Minimum log level.",
)
def broker(**options: Any) -> int:
    """Run an AMQP 0-9-1 broker in memory. Retries and dead-lettering behave as in RabbitMQ.

    It is intended for development, tests and demos on one machine. It is not a cluster and does not
    write to disk.
    """
    # Don't use the log of `hopback run`, which would import the whole runtime.
    level = options["log_level"].upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    path, definitions = options["definitions"], {}
    if path is not None:
        try:
            definitions = json.loads(path.read_bytes())
            if not isinstance(definitions, dict):
                raise ValueError(f"it holds a {type(definitions).__name__}, not an object")
        except (OSError, ValueError, RecursionError) as error:
            raise CommandFailed(
                f"{path}: expected RabbitMQ definitions as JSON: {error}",
                do="Export them with `hopback topology show … -o definitions`, or from RabbitMQ.",
            ) from error
    return asyncio.run(_serve(_settings(options), definitions))


def _settings(options: Mapping[str, Any]) -> ServerSettings:
    from hopback.broker.server import ClockKind, Permission, ServerLimits, ServerSettings

    largest = options["max_message"]
    users = dict(options["users"]) or {"guest": "guest"}
    vhosts = tuple(dict.fromkeys(("/", *options["vhosts"])))
    tags_of = {}
    for user, tags in options["tags"]:
        _check_known("--tags", "user", user, users)
        tags_of[user] = tuple(tag.strip() for tag in tags.split(",") if tag.strip())
    permissions = {}
    for user, vhost, configure, write, read in options["permissions"]:
        _check_known("--permission", "user", user, users)
        _check_known("--permission", "vhost", vhost, vhosts)
        try:
            permissions[user, vhost] = Permission(configure, write, read)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--permission") from error
    return ServerSettings(
        host=options["host"],
        port=options["port"],
        http_port=None if options["no_http"] else options["http"],
        version=options["profile"],
        clock=ClockKind(options["clock"]),
        users=users,
        vhosts=vhosts,
        permissions=permissions,
        tags=tags_of,
        limits=ServerLimits(
            connections=options["connections"],
            memory_bytes=options["memory"] * _MIB,
            message_bytes=None if largest is None else largest * _MIB,
        ),
    )


def _check_known(option: str, kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise click.BadParameter(
            f"expected a {kind} of --{kind} ({', '.join(known)}), got {name!r}", param_hint=option
        )


async def _serve(settings: ServerSettings, definitions: Mapping[str, Any]) -> int:
    from hopback.broker.server import BrokerServer

    server = BrokerServer(settings)
    try:
        server.load(definitions)
    except ValueError as error:
        raise CommandFailed(
            f"--definitions: {error}", do="Correct the file. The broker was not started."
        ) from error
    try:
        await server.start()
    except OSError as error:
        raise CommandFailed(
            f"cannot listen on {settings.host}: {error}",
            do="Choose other ports with --port and --http. 0 chooses a free one.",
            code=Exit.UNREACHABLE,
        ) from error
    try:
        # Print each value on its own line, so that scripts can read it.
        click.echo(f"hopback broker, as RabbitMQ {settings.version}; in memory, for this machine")
        click.echo(f"AMQP        {safe(server.url)}")
        if server.http_url is not None:
            click.echo(f"Management  {safe(server.http_url)}")
        click.echo(f"Clock       {settings.clock}")
        click.echo("Ctrl-C stops it.")
        sys.stdout.flush()
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        await stopped.wait()
    finally:
        await server.stop()
    click.echo("Stopped.")
    return Exit.OK
