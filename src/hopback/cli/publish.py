"""The command `hopback publish`, which publishes messages to a queue or exchange and waits for the
confirms.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING

import click

from hopback.broker.sendable import sole_failure
from hopback.cli.broker_options import EMBEDDED, rabbitmq
from hopback.cli.exits import CommandFailed, Exit, exit_of
from hopback.cli.options import WholeNumber, header_pairs
from hopback.errors import (
    AccessRefused,
    ConnectionLost,
    PublishFailed,
    PublishInterrupted,
    PublishRefused,
    Returned,
)
from hopback.text import count_of
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hopback.message import Message

_LONGEST_LINE = 128 * 1024 * 1024
"""Bytes. This is the default limit for message bodies up to RabbitMQ 3.12. It limits the memory
that an endless line would need.
"""


def _check_delay(_ctx: object, _param: object, value: str | None) -> str | None:
    from hopback.durations import parse_wait_ms

    try:
        parse_wait_ms(value or "0s")
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error
    return value


@click.command(short_help="Publish a message and wait for the broker's confirm.")
@click.argument("target", metavar="(QUEUE | EXCHANGE KEY)", nargs=-1)
@click.argument("payload", metavar="(JSON | -)")
@click.option(
    "--broker",
    envvar="HOPBACK_BROKER",
    default=EMBEDDED,
    metavar="URL",
    help="amqp(s):// address. HOPBACK_BROKER keeps it out of process lists. Default: the broker of"
    " `hopback run --broker embedded` in this directory.",
)
@click.option(
    "--delay",
    callback=_check_delay,
    metavar="TIME",
    help="Deliver the message after this time, as in 5m. Needs an application with `app.delays()`.",
)
@click.option("--priority", type=WholeNumber(0, 255), metavar="N", help="Message priority.")
@click.option("--message-id", metavar="ID", help="Message id. Default: a new one per message.")
@click.option("--type", "message_type", metavar="NAME", help="Message type.")
@click.option("--correlation-id", metavar="ID", help="Correlation id.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=TEXT",
    help="Header to set. Repeatable.",
)
@click.option("--raw", is_flag=True, help="Send the text unchanged instead of JSON.")
def publish(
    target: tuple[str, ...],
    payload: str,
    broker: str,
    delay: str | None,
    priority: int | None,
    message_id: str | None,
    message_type: str | None,
    correlation_id: str | None,
    headers: tuple[str, ...],
    raw: bool,
) -> int:
    """Publish JSON to QUEUE, or to EXCHANGE with the routing key KEY. `-` reads one message per
    line from stdin.

    Messages are persistent, mandatory and confirmed by the broker. If a message cannot be routed,
    the command fails with status 1 and prints how many messages were confirmed before.
    """
    from hopback.runtime.context import compose

    match target:
        case (queue,):
            exchange, key = "", queue
        case (exchange, key):
            pass
        case ():
            raise click.UsageError(
                f"expected QUEUE JSON or EXCHANGE KEY JSON, got only {payload[:80]!r}"
            )
        case _:
            raise click.UsageError(
                "expected QUEUE JSON or EXCHANGE KEY JSON, got more: is the JSON in quotes?"
            )
    given = header_pairs(headers)
    lines = _lines() if payload == "-" else iter((os.fsencode(payload),))

    def message(number: int, line: bytes) -> Message:
        document = line if raw else _document(line, number)
        try:
            return compose(
                key,
                document,
                exchange=exchange,
                message_id=message_id,
                message_type=message_type,
                correlation_id=correlation_id,
                headers=given or None,
                delay=delay,
                priority=priority,
            )
        except ValueError as error:  # NaN, or a number that is too large for a float
            raise CommandFailed(
                f"message {number}: {error}", do="--raw sends the text unchanged.", code=Exit.USAGE
            ) from error

    messages = (message(number, line) for number, line in enumerate(lines, 1))
    if broker == EMBEDDED:
        from hopback.cli.embedded import find_embedded

        broker = find_embedded().url
    place = key if not exchange else f"{exchange} with key {key}"
    asyncio.run(_publish(broker, messages, place, delay))
    return Exit.OK


def _lines() -> Iterator[bytes]:
    """Yield the non-empty lines of stdin. Each line is a message."""
    while line := sys.stdin.buffer.readline(_LONGEST_LINE):
        if line.strip():
            yield line.rstrip(b"\r\n")


def _document(line: bytes, number: int) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CommandFailed(
            f"expected JSON as message {number}, got {line.decode(errors='replace')[:80]!r}: {error}",
            do="Put it into single quotes, as in '{\"id\": 7}'. --raw sends the text unchanged.",
            code=Exit.USAGE,
        ) from error


async def _publish(url: str, messages: Iterable[Message], place: str, delay: str | None) -> None:
    """Publish the messages one by one. The next one is read after the broker has confirmed the
    previous one.
    """
    from hopback.clock import SystemClock
    from hopback.runtime.delays import DelayQueues
    from hopback.topology.delays import delay_topology

    connection = await rabbitmq(url).connect("hopback publish")
    topology = delay_topology(delay or "0s")
    delays = DelayQueues(lambda: topology, SystemClock())
    delays.connection = connection
    confirmed = 0
    try:
        channel = await connection.open_channel()
        for message in messages:
            delayed = message if message.delay is None else await delays.wrap(message)
            await channel.room()
            try:
                await channel.publish(delayed, mandatory=True)
            except PublishInterrupted as error:
                raise sole_failure(delayed, error) from error.__cause__
            confirmed += 1
    except (PublishFailed, ConnectionLost) as error:
        remedy = error.remedy
        if delay is not None and isinstance(error, PublishRefused):
            remedy = f"Run an application that declares app.delays(longest={delay!r}) first."
        elif isinstance(error, Returned):
            remedy = "Check the name. `hopback run` declares the queues of an application when it starts."
        cause = error.__cause__
        deciding = cause if isinstance(cause, AccessRefused | ConnectionLost) else error
        raise CommandFailed(str(error), do=remedy, code=exit_of(deciding)) from error
    finally:
        await connection.close()
        if confirmed:
            click.echo(safe(f"{count_of(confirmed)} confirmed for {place}."))
