"""The tree of commands. Errors are converted to messages and exit codes.

Commands are imported when they are called. The tables contain the module and the help text of each
command, so that `--help` does not have to import them. A test compares these texts with the
commands.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

import click
from click.shell_completion import CompletionItem

from hopback import __version__
from hopback.cli.exits import CommandFailed, Exit, exit_of
from hopback.errors import HopbackError
from hopback.text import safe_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command is defined (`module:attribute`), and its help text."""

    place: str
    help: str

    def load(self) -> click.Command:
        module, attribute = self.place.split(":")
        return cast("click.Command", getattr(import_module(module), attribute))


class _ReaderLeft(Exception):
    """The reader of stdout has closed it. Click would report this as a failure."""


class LazyGroup(click.Group):
    """A group of commands that are listed in a table."""

    def __init__(self, *, table: Mapping[str, LazyCommand], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command with this name."""
        found = self.table.get(cmd_name)
        return None if found is None else found.load()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. If the name is unknown, the error suggests the closest one."""
        name = args[0]
        if name in self.table or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from hopback.cli.options import did_you_mean

        message = f"No such command {name!r}. {did_you_mean(name, self.table)}"
        raise click.UsageError(message.rstrip(), ctx)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. Raises `_ReaderLeft` if stdout has been closed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderLeft from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands and options from the table. This does not import the commands, so it is
        fast.
        """
        named = [
            CompletionItem(name, help=command.help)
            for name, command in self.table.items()
            if name.startswith(incomplete)
        ]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.table.items()])


_COMMANDS = {
    "init": LazyCommand(
        "hopback.cli.init:init", "Write a small service with a test and container files."
    ),
    "run": LazyCommand("hopback.cli.run:run", "Run an application's handlers."),
    "publish": LazyCommand(
        "hopback.cli.publish:publish", "Publish a message and wait for the broker's confirm."
    ),
    "pause": LazyCommand(
        "hopback.cli.pause:pause",
        "Pause consumption of a queue in a running service.",
    ),
    "resume": LazyCommand(
        "hopback.cli.pause:resume",
        "Resume consumption of a paused queue.",
    ),
    "dlq": LazyCommand("hopback.cli.app:dlq", "Inspect, re-drive and discard dead letters."),
    "jobs": LazyCommand(
        "hopback.ops.cli.jobs:jobs",
        "List and control re-drives and discards.",
    ),
    "serve": LazyCommand("hopback.ops.cli.serve:serve", "Serve the admin page and the HTTP API."),
    "alerts": LazyCommand(
        "hopback.ops.alerts.command:alerts",
        "List alerts of `hopback serve` and test their targets.",
    ),
    "audit": LazyCommand("hopback.ops.cli.audit:audit", "Show the audit of dead letters."),
    "topology": LazyCommand(
        "hopback.cli.app:topology",
        "Show, check, export, draw and apply topologies.",
    ),
    "simulate": LazyCommand(
        "hopback.cli.simulate:simulate",
        "Simulate a failing message in virtual time.",
    ),
    "rehearse": LazyCommand(
        "hopback.cli.rehearse:rehearse",
        "Predict depths, dead letters and recovery of an outage.",
    ),
    "doctor": LazyCommand("hopback.cli.live_broker:doctor", "Report problems of a live broker."),
    "adopt": LazyCommand("hopback.ops.cli.adopt:adopt", "Add a failure plan to an existing queue."),
    "store": LazyCommand(
        "hopback.cli.store:store",
        "Migrate the database and relay its outbox.",
    ),
    "broker": LazyCommand(
        "hopback.cli.broker:broker",
        "Run an in-memory AMQP broker for development and tests.",
    ),
    "celery": LazyCommand(
        "hopback.cli.celery:celery", "Check a Celery application for message loss."
    ),
    "demo": LazyCommand(
        "hopback.systems.demo.command:demo", "Run the documented systems with sample traffic."
    ),
    "systems": LazyCommand(
        "hopback.cli.topology:systems", "List the documented designs, or describe one."
    ),
}


@click.group(
    cls=LazyGroup, table=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="hopback", message="%(prog)s %(version)s")
def root() -> None:
    """Dependable RabbitMQ consumers: retries, dead letters and topologies."""


_TOPOLOGY = {
    "show": LazyCommand("hopback.cli.topology:show", "Show exchanges, queues and plans."),
    "check": LazyCommand("hopback.cli.topology:check", "Report hazards, each with its fix."),
    "export": LazyCommand(
        "hopback.cli.topology:export", "Export RabbitMQ definitions or another format."
    ),
    "diagram": LazyCommand("hopback.cli.topology:diagram", "Draw a Mermaid diagram."),
    "plan": LazyCommand("hopback.cli.live_broker:plan", "Compare with a live broker."),
    "apply": LazyCommand(
        "hopback.cli.live_broker:apply", "Create missing objects on a live broker."
    ),
    "migrate": LazyCommand(
        "hopback.cli.live_broker:migrate",
        "Recreate queues that differ, keeping their messages.",
    ),
    "revert": LazyCommand(
        "hopback.cli.live_broker:revert",
        "Restore the delivery limits that apply has lifted.",
    ),
}


@click.group(
    cls=LazyGroup,
    table=_TOPOLOGY,
    short_help="Show, check, export, draw and apply topologies.",
)
def topology() -> None:
    """Show, check, export, draw and apply topologies.

    A topology is a documented SYSTEM (`hopback systems`), a .toml FILE in Hopback's format, a .json FILE
    with RabbitMQ definitions, or the `App` of MODULE:APP.
    """


_DLQ = {
    "ls": LazyCommand("hopback.ops.cli.dlq:ls", "List dead-letter queues with their depths."),
    "show": LazyCommand(
        "hopback.ops.cli.dlq:show", "Show type, browsing cost and targets of a queue."
    ),
    "groups": LazyCommand(
        "hopback.ops.cli.dlq:groups", "Count messages by error or another property."
    ),
    "peek": LazyCommand("hopback.ops.cli.dlq:peek", "List the messages at the head."),
    "get": LazyCommand("hopback.ops.cli.dlq:get", "Show one message in full."),
    "errors": LazyCommand("hopback.ops.cli.dlq:errors", "List the errors of all queues."),
    "search": LazyCommand("hopback.ops.cli.dlq:search", "Search messages in one or all queues."),
    "export": LazyCommand(
        "hopback.ops.cli.dlq_archives:export", "Export messages to a file. No message is removed."
    ),
    "import": LazyCommand(
        "hopback.ops.cli.dlq_archives:import_", "Publish exported messages again."
    ),
    "redrive": LazyCommand(
        "hopback.ops.cli.dlq_actions:redrive",
        "Send messages back to the queue in which they failed.",
    ),
    "discard": LazyCommand(
        "hopback.ops.cli.dlq_actions:discard",
        "Write messages to a file and remove them.",
    ),
    "edit": LazyCommand("hopback.ops.cli.dlq_actions:edit", "Send a changed copy of one message."),
    "restore-limit": LazyCommand(
        "hopback.ops.cli.dlq_actions:restore_limit", "Restore a lifted delivery limit."
    ),
    "watch": LazyCommand("hopback.ops.cli.dlq:watch", "Print depths periodically."),
    "notes": LazyCommand(
        "hopback.ops.notes.command:notes", "List, add or remove notes on groups of a queue."
    ),
    "history": LazyCommand(
        "hopback.ops.notes.command:history", "Show the actions on a group or a queue."
    ),
    "filters": LazyCommand("hopback.ops.notes.command:filters", "List, save or remove filters."),
    "candidates": LazyCommand(
        "hopback.ops.cli.dlq_candidates:candidates", "List queues that may contain dead letters."
    ),
    "add": LazyCommand(
        "hopback.ops.cli.dlq_candidates:add", "Declare that a queue contains dead letters."
    ),
    "ignore": LazyCommand(
        "hopback.ops.cli.dlq_candidates:ignore", "Declare that a queue contains no dead letters."
    ),
    "forget": LazyCommand(
        "hopback.ops.cli.dlq_candidates:forget", "Withdraw the declaration about a queue."
    ),
}


@click.group(
    cls=LazyGroup,
    table=_DLQ,
    short_help="Inspect, re-drive and discard dead letters.",
)
def dlq() -> None:
    """Inspect, re-drive and discard the dead letters of any RabbitMQ.

    Connects to the broker (--broker) or to a server (--server).
    """


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code. Errors are printed to stderr without a traceback."""
    try:
        ended = root.main(list(arguments), prog_name="hopback", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except HopbackError as error:
        remedy = error.do if isinstance(error, CommandFailed) else error.remedy
        click.echo(f"Error: {safe_lines(str(error))}\n{safe_lines(remedy)}", err=True)
        return exit_of(error)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return Exit.INTERRUPTED
    except (_ReaderLeft, BrokenPipeError):
        # The reader of stdout has closed it, for example in `| head`. This is not a failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    return ended if isinstance(ended, int) else Exit.OK
