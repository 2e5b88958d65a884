"""The commands of `hopback alerts`, which list alerts and test targets."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import Exit
from hopback.cli.terminal import table
from hopback.ops.alerts.values import AlertState
from hopback.ops.cli.access import (
    OpsAccess,
    access_options,
    dead_letter_command,
    with_dead_letters,
)
from hopback.ops.cli.dlq_print import ago, form_option, output
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from hopback.ops.contract.interface import DeadLetters


@click.group(short_help="List alerts of `hopback serve` and test their targets.")
def alerts() -> None:
    """List the alerts of a service (`hopback serve --config FILE`) and test their targets.

    The settings file of the service contains rules and targets. Its store contains the alerts.
    """


@alerts.command(short_help="List alerts.")
@click.option("--all", "everything", is_flag=True, help="Include alerts resolved within a week.")
@dead_letter_command
@form_option
async def ls(dead_letters: DeadLetters, everything: bool, form: str) -> None:
    """List firing and pending alerts, from a server or from its store."""
    found = await dead_letters.alerts()
    shown = [one for one in found.items if everything or one.state is not AlertState.RESOLVED]

    def in_words() -> None:
        rows = [
            (
                one.state,
                f"{one.queue} ({one.broker})" if one.broker else one.queue,
                one.text,
                one.rule,
                ago(one.resolved_at or one.fired_at or one.since, time.time()),
                ", ".join(one.told) or "none",
            )
            for one in shown
        ]
        if rows:
            table(("state", "queue", "what", "rule", "since", "told"), rows)
        else:
            click.echo("No alerts.")

    output(form, shown, in_words)


@alerts.command(short_help="Send a test notice to a target.")
@click.argument("target", metavar="TARGET")
@access_options
@form_option
def test(target: str, form: str, access: OpsAccess) -> int:
    """Send a test notice to TARGET and report whether the target accepted it.

    The server sends it (--server), or this process with the targets of a settings file (--config).
    """
    if access.server is not None:
        found = with_dead_letters(access, lambda dead_letters: dead_letters.test_alert(target))
    elif access.config is not None:
        from hopback.clock import SystemClock
        from hopback.ops.alerts.book import AlertBook
        from hopback.ops.alerts.watch import Alerting
        from hopback.ops.http.settings import read_settings
        from hopback.sql.sqlite import MemoryDatabase

        settings = read_settings(access.config, os.environ).alerts
        here = Alerting(settings, AlertBook(MemoryDatabase()), (), SystemClock(), os.environ)
        found = asyncio.run(here.test(target))
    else:
        raise click.UsageError("Missing option '--config FILE' or '--server URL'.")
    result = "accepted the test" if found.delivered else f"refused the test: {found.problem}"
    output(form, found, lambda: click.echo(safe(f"{found.target} {result}.")))
    return Exit.OK if found.delivered else Exit.FAILED
