"""The root of the command, and the one place where errors become words and exit codes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from hopback import __version__
from hopback.cli.exits import CommandFailed, Exit, exit_of
from hopback.cli.lazy import LazyCommand, LazyGroup
from hopback.cli.terminal import safe_lines
from hopback.errors import HopbackError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["root", "run"]

_COMMANDS = {
    "systems": LazyCommand(
        "hopback.cli.systems:systems", "List the documented designs, or describe one."
    ),
    "demo": LazyCommand(
        "hopback.cli.demo:demo", "Run the documented systems with a little traffic."
    ),
    "topology": LazyCommand(
        "hopback.cli.topology:topology",
        "Show, check, export and draw a topology; compare it with a broker.",
    ),
    "simulate": LazyCommand(
        "hopback.cli.simulate:simulate",
        "Play a message's life in virtual time, without RabbitMQ.",
    ),
    "rehearse": LazyCommand(
        "hopback.cli.rehearse:rehearse",
        "Rehearse an outage: depths, dead letters, recovery, in virtual time.",
    ),
    "doctor": LazyCommand(
        "hopback.cli.live_broker:doctor", "Look at a live broker and say what is wrong."
    ),
    "broker": LazyCommand(
        "hopback.cli.broker:broker",
        "Serve AMQP on this machine, without RabbitMQ: development and tests.",
    ),
    "run": LazyCommand("hopback.cli.run:run", "Run an application's handlers."),
    "pause": LazyCommand(
        "hopback.cli.run:pause",
        "Let a running service take no deliveries of a queue.",
    ),
    "resume": LazyCommand(
        "hopback.cli.run:resume",
        "Let a running service take deliveries of a paused queue again.",
    ),
    "dlq": LazyCommand(
        "hopback.cli.dlq:dlq", "Dead letters: look without harm, send back without loss."
    ),
    "jobs": LazyCommand(
        "hopback.cli.jobs:jobs",
        "Re-drives and discards: follow, pause, cancel, resume them.",
    ),
    "serve": LazyCommand(
        "hopback.cli.serve:serve", "Serve dead letters and jobs by HTTP and on a page."
    ),
    "store": LazyCommand(
        "hopback.cli.store:store",
        "The database of inbox and outbox: migrate it, relay what it holds.",
    ),
}


@click.group(
    cls=LazyGroup, table=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="hopback", message="%(prog)s %(version)s")
def root() -> None:
    """Dependable RabbitMQ consumers: retries, dead letters and topologies you can trust."""


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; errors are told on stderr, without a traceback."""
    try:
        ended = root.main(list(arguments), prog_name="hopback", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except HopbackError as error:
        _tell(error)
        return exit_of(error)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    return ended if isinstance(ended, int) else Exit.OK


def _tell(error: HopbackError) -> None:
    """What happened, then what to do about it."""
    remedy = error.do if isinstance(error, CommandFailed) else error.remedy
    click.echo(f"Error: {safe_lines(str(error))}\n{safe_lines(remedy)}", err=True)


def _reader_left() -> int:
    """The reader of our output closed it (`| head`): that is no failure and needs no words."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OK
