"""`hopback dlq`: look at dead letters, send them back, discard them, keep them in files."""

from __future__ import annotations

import click

from hopback.cli.lazy import LazyCommand, LazyGroup

__all__ = ["dlq"]

_COMMANDS = {
    "ls": LazyCommand("hopback.cli.dlq_reading:ls", "List dead-letter queues with their depths."),
    "show": LazyCommand(
        "hopback.cli.dlq_reading:show", "Show a queue: type, cost of looking, targets."
    ),
    "groups": LazyCommand(
        "hopback.cli.dlq_reading:groups", "Count messages by what they have in common."
    ),
    "peek": LazyCommand("hopback.cli.dlq_reading:peek", "List the messages at the head."),
    "get": LazyCommand("hopback.cli.dlq_message:get", "Show one message with everything about it."),
    "export": LazyCommand(
        "hopback.cli.dlq_archives:export", "Write messages to a file; nothing is removed."
    ),
    "import": LazyCommand(
        "hopback.cli.dlq_archives:import_", "Publish exported messages again, each confirmed."
    ),
    "redrive": LazyCommand(
        "hopback.cli.dlq_acting:redrive", "Send messages back to where they failed, safely."
    ),
    "discard": LazyCommand(
        "hopback.cli.dlq_acting:discard", "Remove messages for good, after writing them to a file."
    ),
    "watch": LazyCommand("hopback.cli.dlq_reading:watch", "Follow the depths until stopped."),
}


@click.group(
    cls=LazyGroup,
    table=_COMMANDS,
    short_help="Dead letters: look without harm, send back without loss.",
)
def dlq() -> None:
    """Dead letters: look without harm, send back without loss.

    Works on any RabbitMQ, directly (--broker) or through a server (--server).
    """
