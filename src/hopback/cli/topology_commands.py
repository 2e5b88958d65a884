"""`hopback topology`: show, check, export and draw, all without a broker.

`plan` and `apply`, which talk to one, live in `broker_commands`.
"""

from __future__ import annotations

import click

from hopback.cli.lazy import LazyCommand, LazyGroup

__all__ = ["topology"]

_COMMANDS = {
    "show": LazyCommand("hopback.cli.show_command:show", "Show exchanges, queues and plans."),
    "check": LazyCommand("hopback.cli.check_command:check", "Report hazards, each with its fix."),
    "export": LazyCommand(
        "hopback.cli.show_command:export", "Write definitions for RabbitMQ, or another form."
    ),
    "diagram": LazyCommand("hopback.cli.show_command:diagram", "Draw it as Mermaid."),
    "plan": LazyCommand(
        "hopback.cli.broker_commands:plan", "Compare with a live broker; change nothing."
    ),
    "apply": LazyCommand(
        "hopback.cli.broker_commands:apply", "Create on a live broker what is missing."
    ),
    "migrate": LazyCommand(
        "hopback.cli.migrate_command:migrate",
        "Replace queues of another form, keeping their messages.",
    ),
    "revert": LazyCommand(
        "hopback.cli.broker_commands:revert",
        "Take back the delivery limits that apply has lifted.",
    ),
}


@click.group(
    cls=LazyGroup,
    table=_COMMANDS,
    short_help="Show, check, export and draw a topology; compare it with a broker.",
)
def topology() -> None:
    """Topologies: a documented SYSTEM (`hopback systems`), or a FILE.

    A .toml file is Hopback's own form, a .json file RabbitMQ's definitions.
    """
