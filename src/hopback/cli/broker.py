"""`hopback broker`: the embedded broker on a socket, until it is told to stop."""

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
from hopback.text import one_line as safe
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hopback.broker.server import ServerSettings

_MIB = 1024 * 1024
"""Bytes; the options are in mebibytes."""


class _UserType(click.ParamType[tuple[str, str]]):
    """`NAME:PASSWORD`."""

    name = "name:password"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Name and password; the error shows neither."""
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
        """The version; the error says what one looks like."""
        if isinstance(value, BrokerVersion):
            return value
        try:
            return BrokerVersion.parse(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


@click.command(short_help="Serve AMQP on this machine, without RabbitMQ: development and tests.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where to listen; no TLS, so stay here."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=5672,
    show_default=True,
    help="For AMQP; 0 takes a free one.",
)
@click.option(
    "--http",
    type=click.IntRange(0, 65_535),
    default=15672,
    show_default=True,
    help="For the management API and the clock; 0 takes a free one.",
)
@click.option("--no-http", is_flag=True, help="No management API, and no clock to turn.")
@click.option(
    "--profile",
    type=_VersionType(),
    default="4.0",
    show_default=True,
    metavar="V",
    help="The RabbitMQ version whose behaviour it shows.",
)
@click.option(
    "--clock",
    type=click.Choice(("system", "virtual", "auto")),
    default="system",
    show_default=True,
    help="The machine's; one that POST /clock/advance turns; one that jumps when all is quiet.",
)
@click.option(
    "--user",
    "users",
    type=_UserType(),
    multiple=True,
    envvar="HOPBACK_BROKER_USERS",
    metavar="NAME:PASSWORD",
    help="Who may log in, instead of guest; repeatable. Also HOPBACK_BROKER_USERS, with spaces.",
)
@click.option(
    "--vhost",
    "vhosts",
    multiple=True,
    metavar="NAME",
    help="A virtual host beside /; repeatable.",
)
@click.option(
    "--permission",
    "permissions",
    nargs=5,
    multiple=True,
    metavar="USER VHOST CONFIGURE WRITE READ",
    help="What a user may do: three patterns, for this user instead of everything; repeatable.",
)
@click.option(
    "--tags",
    nargs=2,
    multiple=True,
    metavar="USER TAG,TAG",
    help="For the management API; by default administrator, none for users with --permission.",
)
@click.option(
    "--definitions",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Load RabbitMQ definitions at the start.",
)
@click.option(
    "--memory",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    metavar="MIB",
    help="What messages may take before publishers are blocked.",
)
@click.option(
    "--max-message",
    type=click.IntRange(min=1),
    metavar="MIB",
    help="The largest body; by default that of the version shown.",
)
@click.option(
    "--connections",
    type=click.IntRange(min=1),
    default=4096,
    show_default=True,
    metavar="N",
    help="How many clients may be connected at once.",
)
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="warning",
    show_default=True,
    help="The least that is logged.",
)
def broker(**options: Any) -> int:
    """Serve AMQP 0-9-1 on this machine until it is stopped, with RabbitMQ's retry and dead-letter
    behaviour. Everything is in memory and gone at the end.

    For development, tests and demos on one machine: it is no cluster and keeps nothing.
    """
    # Not the log of `hopback run`: that would load the whole runtime first.
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
            f"--definitions: {error}", do="Correct the file; nothing was started."
        ) from error
    try:
        await server.start()
    except OSError as error:
        raise CommandFailed(
            f"cannot listen on {settings.host}: {error}",
            do="Choose other ports with --port and --http; 0 takes a free one.",
            code=Exit.UNREACHABLE,
        ) from error
    try:
        # One line each, so that a script can read them.
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
