"""The command `hopback serve`, which runs the page and the HTTP API."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopback.cli.event_loop import quick_loop
from hopback.cli.exits import Exit
from hopback.cli.options import EnvironmentCommand, HttpAddress, cannot_listen, url_host
from hopback.clock import SystemClock
from hopback.ops.cli.access import (
    OpsAccess,
    apply_settings,
    broker_access_options,
    file_brokers,
    open_broker,
    open_operations,
    operation_settings,
)
from hopback.ops.cli.journal import journal

if TYPE_CHECKING:
    from hopback.ops.http.settings import AdminSettings
    from hopback.ops.operations import Operations


@click.command(cls=EnvironmentCommand, short_help="Serve the admin page and the HTTP API.")
@broker_access_options
@click.option(
    "--http",
    type=HttpAddress(),
    default="8080",
    show_default=True,
    metavar="[HOST:]PORT",
    help="Address to listen on. Default host: 127.0.0.1. Other hosts need a sign-in (--config).",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file with brokers, tokens, keys, roles and limits.",
)
@click.option("--dev", is_flag=True, help="Print a login link. For development.")
@click.option("--tls-cert", metavar="FILE", help="Serve HTTPS with this certificate.")
@click.option("--tls-key", metavar="FILE", help="Private key of the certificate.")
@click.option(
    "--proxied",
    is_flag=True,
    help="Trust the client address and scheme sent by a proxy on this machine.",
)
@click.option("--new-key", metavar="NAME", help="Create an API key for the settings file and exit.")
@click.option(
    "--role",
    type=click.Choice(("viewer", "operator", "admin")),
    default="viewer",
    show_default=True,
    help="Role of the --new-key.",
)
def serve(
    new_key: str | None,
    role: str,
    access: OpsAccess,
    config: Path | None,
    http: tuple[str, int],
    dev: bool,
    **server: Any,
) -> int:
    """Serve the admin page and the HTTP API.

    Without --config there is no sign-in and only this machine is served.
    """
    from hopback.ops import http as admin

    if new_key is not None:
        return _print_key(new_key, role)
    access, settings = replace(access, config=config), admin.AdminSettings()
    if config is not None:
        settings = admin.read_settings(config, os.environ)
    if settings.brokers and access.broker is not None:
        raise click.UsageError(
            "--broker (or HOPBACK_BROKER) and the [[brokers]] of --config exclude each other."
        )
    if not settings.brokers and access.broker is None:
        raise click.UsageError(
            "Missing option '--broker' (or HOPBACK_BROKER, or [[brokers]] in --config)."
        )
    admin.refuse_public(http[0], asks_who=settings.asks_who or dev)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    with asyncio.Runner(loop_factory=quick_loop()) as runner:
        runner.run(_serve(access, settings, http, dev=dev, **server))
    return Exit.OK


async def _serve(
    access: OpsAccess,
    settings: AdminSettings,
    http: tuple[str, int],
    *,
    dev: bool,
    tls_cert: str | None,
    tls_key: str | None,
    proxied: bool,
) -> None:
    from hopback.ops.http import create_app
    from hopback.ops.http import serve as serve_app
    from hopback.ops.http.auth import new_secret

    link = new_secret() if dev else None
    async with AsyncExitStack() as stack:
        operations = await _open_brokers(access, stack, settings)
        # raise an error for an unusable database before serving
        await operations[0].journal.store_id()
        app = create_app(*operations, settings=settings, link=link)

        def tell(host: str, port: int) -> None:
            scheme = "https" if tls_cert else "http"
            address = f"{scheme}://{url_host(host, port)}/"
            click.echo(f"Serving {address}", err=True)
            if link is not None:
                click.echo(f"Sign in: {address}login?token={link}", err=True)
                click.echo("The link works once.", err=True)
            elif access.config is None:
                click.echo("No sign-in is configured: only this machine is served.", err=True)

        try:
            await serve_app(
                app,
                host=http[0],
                port=http[1],
                on_ready=tell,
                certificate=tls_cert,
                key=tls_key,
                proxied=proxied,
            )
        except SystemExit as ended:  # uvicorn could not listen
            raise cannot_listen(http, "see the line above") from ended


async def _open_brokers(
    access: OpsAccess, stack: AsyncExitStack, settings: AdminSettings
) -> list[Operations]:
    """Open the brokers of the settings with a shared journal, or the broker of the options.

    This does not connect to any broker yet.
    """
    from hopback.ops.operations import Operations

    editing, lease_s = settings.deadletters.editing, settings.jobs.lease_seconds
    if not settings.brokers:
        return [await open_operations(access, stack, editing=editing, lease_s=lease_s)]
    clock = SystemClock()
    kept = await stack.enter_async_context(journal(access.store, clock, lease_s=lease_s))
    brokers = [
        await open_broker(apply_settings(each, access), stack, clock, name=each.name, ask=False)
        for each in file_brokers(access.config)
    ]
    shared = operation_settings(editing=editing)
    beside = [each.journal_name for each in brokers]
    return [
        await stack.enter_async_context(
            Operations(
                each, journal=kept, settings=shared, beside=beside, is_first=each is brokers[0]
            )
        )
        for each in brokers
    ]


def _print_key(name: str, role: str) -> int:
    """Print a new key to stdout. The entry for the settings file, which contains its hash, goes to
    stderr.
    """
    from hopback.ops.contract.roles import Grant, Role
    from hopback.ops.http.keys import new_key
    from hopback.text import one_line as safe

    secret, key = new_key(name, Grant(Role(role)), expires=None, made_by="", now=0.0)
    click.echo("The new key, shown only once:", err=True)
    click.echo(secret)
    click.echo("Add this to the settings file:", err=True)
    quoted = safe(name).replace("\\", "\\\\").replace('"', '\\"')
    click.echo(
        f'\n[[auth.keys]]\nname = "{quoted}"\nhash = "{key.hash}"\nrole = "{role}"\nqueues = ["*"]',
        err=True,
    )
    return Exit.OK
