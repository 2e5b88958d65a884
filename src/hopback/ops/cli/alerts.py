"""`hopback alerts`: what fires, and whether those who are told can be reached."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import Exit
from hopback.cli.terminal import table
from hopback.ops.alerts.rules import AlertState
from hopback.ops.cli.dlq_print import ago, form_option, output
from hopback.ops.cli.where import where_options, with_dead_letters
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from hopback.ops.cli.where import Where


@click.group(short_help="Alerts of `hopback serve`: list them, try who is told.")
def alerts() -> None:
    """Alerts that a service (`hopback serve --config FILE`) looks after.

    Rules and targets are in its settings file; alerts are kept in its store.
    """


@alerts.command(short_help="List the alerts that fire.")
@click.option("--all", "everything", is_flag=True, help="Also those resolved within a week.")
@where_options
@form_option
def ls(everything: bool, form: str, where: Where) -> None:
    """List alerts that fire or are about to, from a server or from the store that it uses."""
    found = with_dead_letters(where, lambda dead_letters: dead_letters.alerts(), light=False)
    shown = [one for one in found.items if everything or one.state is not AlertState.RESOLVED]

    def in_words() -> None:
        rows = [
            (
                one.state,
                f"{one.queue} ({one.broker})" if one.broker else one.queue,
                one.text,
                one.rule,
                ago(one.resolved_at or one.fired_at or one.since, time.time()),
                ", ".join(one.told) or "nobody",
            )
            for one in shown
        ]
        if rows:
            table(("state", "queue", "what", "rule", "since", "told"), rows)
        else:
            click.echo("No alerts.")

    output(form, shown, in_words)


@alerts.command(short_help="Send a target a message that says it is a test.")
@click.argument("target", metavar="TARGET")
@where_options
@form_option
def test(target: str, form: str, where: Where) -> int:
    """Send TARGET a message that says it is a test, and tell whether it was taken.

    The server sends it (--server), or this process by the settings file (--config).
    """
    if where.server is not None:
        found = with_dead_letters(
            where, lambda dead_letters: dead_letters.test_alert(target), light=False
        )
    elif where.config is not None:
        from hopback.clock import SystemClock
        from hopback.ops.alerts.book import MemoryAlertBook
        from hopback.ops.alerts.service import Alerting, AlertSender
        from hopback.ops.http.settings import read_settings

        clock, settings = SystemClock(), read_settings(where.config, os.environ).alerts
        senders = {
            one.name: AlertSender(one, os.environ, clock, settings.link) for one in settings.targets
        }
        here = Alerting(settings, MemoryAlertBook(), (), senders, clock)
        found = asyncio.run(here.test(target))
    else:
        raise click.UsageError("Missing option '--config FILE' or '--server URL'.")
    told = "took the test message" if found.delivered else f"did not take it: {found.problem}"
    output(form, found, lambda: click.echo(safe(f"{found.target} {told}.")))
    return Exit.OK if found.delivered else Exit.FAILED
