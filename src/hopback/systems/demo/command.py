"""The command `hopback demo`, which runs the documented systems with sample traffic."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from hopback.cli.broker_options import EMBEDDED, management_option
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import HttpAddress, did_you_mean
from hopback.extras import needs
from hopback.systems import HOMES
from hopback.text import one_line as safe
from hopback.waiting import first_of

if TYPE_CHECKING:
    from hopback.systems.demo.run import DemoSettings


@click.command(short_help="Run the documented systems with sample traffic.")
@click.argument("name", required=False)
@click.option(
    "--broker",
    envvar="HOPBACK_BROKER",
    metavar="URL",
    help="amqp(s):// address of a RabbitMQ. Default: start an embedded broker.",
)
@management_option
@click.option(
    "--database",
    metavar="URL",
    help="postgresql:// address. Default: a SQLite file per system.",
)
@click.option("--folder", metavar="PATH", help="Folder for files. Default: a temporary folder.")
@click.option(
    "--http",
    type=HttpAddress(),
    default="8080",
    show_default=True,
    metavar="[HOST:]PORT",
    help="Address of systems, page, health and metrics. Port 0 chooses a free one.",
)
@click.option("--hardened", is_flag=True, help="Use the hardened forms, which lose no messages.")
@click.option("--no-traffic", is_flag=True, help="Send no sample traffic.")
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="warning",
    show_default=True,
    help="Minimum log level. Retries are warnings, handled messages are `debug`.",
)
def demo(name: str | None, no_traffic: bool, broker: str | None, **options: Any) -> int:
    """Run the documented system NAME, or all five, until you press Ctrl-C.

    Everything runs in this process: the consumers, the web applications and the admin page. Unless
    --broker is given, the process also runs a broker, which other programs on this machine can use.
    """
    if broker in ("", EMBEDDED):
        broker = None
    if name is not None and name not in HOMES:
        raise CommandFailed(
            f"expected a system, got {name!r}",
            do=f"{did_you_mean(name, HOMES)}Systems are {', '.join(HOMES)}.",
            code=Exit.NOT_FOUND,
        )
    names = tuple(HOMES) if name is None else (name,)
    with needs("systems", "the demo"):
        from hopback.systems.demo.run import DemoSettings
    settings = DemoSettings(
        names, broker, traffic=not no_traffic, environment=dict(os.environ), **options
    )
    return asyncio.run(_run(settings))


async def _run(settings: DemoSettings) -> int:
    """Run until the first signal and then shut down in order. A second signal ends the demo
    immediately.
    """
    from hopback.cli.signals import Stopper, listen_to_signals

    stopping = asyncio.Event()
    running = asyncio.create_task(_run_until(stopping, settings))
    stopper = Stopper(lambda: running.cancel() if stopping.is_set() else stopping.set())
    listen_to_signals(stopper)
    try:
        await running
    except asyncio.CancelledError:
        return Exit.INTERRUPTED
    click.echo("Stopped. No process is left running.")
    return Exit.OK


async def _run_until(stopping: asyncio.Event, settings: DemoSettings) -> None:
    from hopback.systems.demo.run import HEADINGS, Demo

    async with AsyncExitStack() as stack:
        started, _ = await first_of(Demo(settings, stack).start(), stopping.wait())
        if started is None:
            return
        with needs("systems", "the demo"):
            guide = started.result()
        for line in guide.lines():
            click.echo(safe(line))
        click.echo(f"\nCtrl-C ends it.\n\n{HEADINGS}")
        await stopping.wait()
        click.echo("Stopping.")
