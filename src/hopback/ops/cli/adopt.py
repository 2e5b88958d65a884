"""The command `hopback adopt`, which shows how to add a failure plan to an existing queue."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hopback.cli.broker_options import Access, broker_options
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import WholeNumber, format_option
from hopback.cli.terminal import ask, details, document, json_text, on_terminal, wrap_text
from hopback.clock import SystemClock
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from hopback.broker.management import QueueReading
    from hopback.fields import Headers
    from hopback.ops.brokers.adoption import Adoption, AdoptionChoice
    from hopback.ops.brokers.managed_broker import ManagedBroker, ManagementApi
    from hopback.ops.contract.values import Survey

# dead letters to read. This is enough to find the frequent errors, and few messages are held.
_LOOKED_AT = 100
_WAYS = ("as-it-is", "beside", "migrated")


@click.command(short_help="Add a failure plan to an existing queue.")
@click.argument("queue")
@click.argument("way", type=click.Choice(_WAYS), required=False)
@broker_options
@click.option(
    "--retry",
    "waits",
    multiple=True,
    metavar="DELAY",
    help="Wait after a failure (30s, 5m). Repeat it for later failures. Default: the waits"
    " of its retry queues, otherwise 30s, 5m, 30m.",
)
@click.option(
    "--attempts",
    type=WholeNumber(1),
    metavar="N",
    help="Maximum number of handler runs. Default: number of waits plus one.",
)
@click.option("--apply", "setting", is_flag=True, help="Set the policy now (with `beside`).")
@click.option("--revert", is_flag=True, help="Delete the policy (with `beside`).")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@format_option("text", "json")
def adopt(
    queue: str,
    way: str | None,
    access: Access,
    waits: tuple[str, ...],
    attempts: int | None,
    setting: bool,
    revert: bool,
    yes: bool,
    form: str,
) -> int:
    """Show the ways to add a failure plan to an existing QUEUE with its messages.

    With a WAY, write its topology file. `as-it-is` declares the queue exactly as it exists. `beside` adds
    dead-lettering by a policy and changes no queue. `migrated` is the recommended form for `hopback
    topology migrate`. Only `beside` with --apply or --revert changes the broker.
    """
    if (setting or revert) and way != "beside":
        raise click.UsageError(
            "--apply and --revert are for `beside`: the other ways write a file."
        )
    if setting and revert:
        raise click.UsageError("--apply and --revert exclude each other.")
    from hopback.durations import parse_duration_ms

    try:
        tiers_ms = tuple(map(parse_duration_ms, waits)) or None
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--retry") from error
    if setting or revert:
        return asyncio.run(_change(access, queue, revert=revert, yes=yes))
    return asyncio.run(_show(access, queue, way, tiers_ms, attempts, form))


async def _open(access: Access, stack: AsyncExitStack) -> tuple[ManagedBroker, ManagementApi]:
    """Open the broker until the stack is closed. Raises CommandFailed without a management API."""
    from hopback.ops.cli.access import OpsAccess, open_broker

    named = OpsAccess(access.broker, access.management, access.amqp_only)
    broker = await open_broker(named, stack, SystemClock())
    stack.push_async_callback(broker.close)
    if broker.management is None:
        raise CommandFailed(
            "arguments, bindings and policies of a queue can only be read through the management API",
            do="Name it with --management URL.",
            code=Exit.UNREACHABLE,
        )
    return broker, broker.management


async def _change(access: Access, queue: str, *, revert: bool, yes: bool) -> int:
    from hopback.ops.brokers.adoption import policy_name, revert_beside, set_beside

    async with AsyncExitStack() as stack:
        broker, _ = await _open(access, stack)
        if revert:
            if not yes:
                ask(f"Delete policy {policy_name(queue)}?")
            taken = await revert_beside(broker, queue)
            if taken is None:
                click.echo(safe(f"Policy {policy_name(queue)} does not exist."))
            else:
                kept = taken.definition.get("dead-letter-routing-key")
                click.echo(
                    safe(
                        f"Policy {taken.name} deleted. Earlier policies apply again."
                        f" Queue {kept} and its messages are kept."
                    )
                )
            return Exit.OK
        if not yes:
            ask(f"Set policy {policy_name(queue)} for the dead letters of {queue}?")
        done = await set_beside(broker, queue)
    if done.created:
        click.echo(safe(f"created queue {done.created}"))
    click.echo(safe(f"set policy {done.policy.name}: {_definition(done.policy.definition)}"))
    click.echo(safe(f"`hopback adopt {queue} beside --revert` deletes the policy."))
    return Exit.OK


async def _show(
    access: Access,
    queue: str,
    way: str | None,
    tiers_ms: tuple[int, ...] | None,
    attempts: int | None,
    form: str,
) -> int:
    from hopback.errors import NoSuch
    from hopback.ops.brokers.adoption import AdoptionWay, adoption

    async with AsyncExitStack() as stack:
        broker, management = await _open(access, stack)
        live = await management.live_topology(broker.vhost)
        if live.queue(queue) is None:
            raise NoSuch("queue", queue, f"the virtual host is {broker.vhost!r}")
        reading = await management.queue(broker.vhost, queue)
        found = adoption(
            live,
            queue,
            await broker.version(),
            tiers_ms=tiers_ms,
            attempts=attempts,
            reported_policy=reading.policy,
        )
        holders = await management.holders(broker.vhost, queue)
        if way is not None:
            return _write(found.choice(AdoptionWay(way)), form)
        looked_at = await _look(broker, found)
    if form == "json":
        document(json_text(_adoption_data(found, reading, holders, looked_at)))
    else:
        _print(found, reading, holders, looked_at)
    return Exit.OK


async def _look(broker: ManagedBroker, found: Adoption) -> dict[str, Survey | str]:
    """Survey the dead-letter queues of the adopted queue. If a queue cannot be read, return the reason."""
    from hopback.errors import HopbackError
    from hopback.ops.contract.candidates import CandidateAnswer, QueueAnswer
    from hopback.ops.contract.search import survey_queue
    from hopback.ops.operations import Operations

    looked: dict[str, Survey | str] = {}
    operations = Operations(broker)
    for name in found.dead_letter_queues:
        try:
            answer = QueueAnswer(name, CandidateAnswer.ADD, found.queue.name)
            await operations.answer_candidate(answer)
            looked[name] = await survey_queue(operations, name, limit=_LOOKED_AT)
        except HopbackError as refused:  # mostly because messages could be lost
            looked[name] = str(refused)
    return looked


def _print(
    found: Adoption,
    reading: QueueReading,
    holders: tuple[str, ...],
    looked_at: dict[str, Survey | str],
) -> None:
    from hopback.ops.cli.dlq_print import print_groups

    queue = found.queue
    policy = found.policy
    flags = [
        "durable" if queue.durable else "not durable",
        *(["exclusive"] if queue.exclusive else []),
        *(["auto-delete"] if queue.auto_delete else []),
    ]
    ready, unacked = reading.counts.ready, reading.counts.unacked
    details(
        (
            ("queue", f"{queue.name}: {queue.type}, {', '.join(flags)}"),
            ("arguments", _definition(queue.arguments) or "none"),
            ("policy", f"{policy.name}: {_definition(policy.definition)}" if policy else "none"),
            *([("operator policy", reading.operator_policy)] if reading.operator_policy else []),
            (
                "bindings",
                "\n".join(f"{one.source} by {one.routing_key!r}" for one in found.bindings)
                or "only the default exchange",
            ),
            ("messages", f"{ready or 0} ready, {unacked or 0} unacked (up to 5 s old)"),
            ("consumers", "\n".join(holders) or "none"),
            ("dead letters", ", ".join(found.dead_letter_queues) or "are deleted"),
        )
    )
    for name, looked in looked_at.items():
        click.echo()
        click.echo(safe(f"The first {_LOOKED_AT} messages of {name}:"))
        if isinstance(looked, str):
            click.echo(wrap_text(f"not read: {looked}", "  "))
        else:
            print_groups(looked, time.time())
    for number, choice in enumerate(found.choices, start=1):
        click.echo()
        _print_choice(number, choice, queue.name)


_TITLES = {
    "as-it-is": "As it is: declare the queue unchanged, with a failure plan",
    "beside": "Beside it: dead-letter by a policy, change no queue",
    "migrated": "Migrated: the recommended form, keeping messages and bindings",
}


def _print_choice(number: int, choice: AdoptionChoice, queue: str) -> None:
    from shlex import quote

    way, file = str(choice.way), quote(f"{queue}.toml")
    click.echo(f"{number}. {_TITLES[way]}")
    for why in choice.refused:
        click.echo(wrap_text(f"refused: {why}", "   "))
    if choice.refused:
        return
    for one in choice.findings:
        click.echo(wrap_text(f"{one.severity}: {one.place}: {one.explanation}", "   "))
    for note in choice.notes:
        click.echo(wrap_text(note, "   "))
    steps = [f"hopback adopt {quote(queue)} {way} > {file}"]
    match way:
        case "as-it-is" if choice.decorator:
            steps = [choice.decorator]
        case "beside":
            steps = [f"hopback adopt {quote(queue)} beside --apply"]
        case "migrated":
            steps += [f"hopback topology migrate {file} --dry-run"]
    for step in steps:
        click.echo(safe(f"   $ {step}" if not step.startswith("@") else f"   {step}"))


def _write(choice: AdoptionChoice, form: str) -> int:
    """Write the topology file to stdout. Raises CommandFailed if this way is refused."""
    from hopback.topology.document import write_toml

    if choice.refused:
        raise CommandFailed(
            f"{choice.topology.name} cannot be adopted {_SPOKEN[str(choice.way)]}:\n"
            + "\n".join(f"  {why}" for why in choice.refused),
            do=f"`hopback adopt {choice.topology.name}` shows the other ways.",
            code=Exit.NOT_ALLOWED,
        )
    if form == "json":
        document(json_text(_choice_data(choice)))
        return Exit.OK
    comments = [f"{_TITLES[str(choice.way)]}."]
    comments += [f"{one.severity}: {one.place}: {one.explanation}" for one in choice.findings]
    comments += [f"{note}." for note in choice.notes]
    head = "\n".join(wrap_text(comment, "# ") for comment in comments)
    document(f"{head}\n\n{write_toml(choice.topology)}")
    if on_terminal():
        click.echo(safe(f"# Write it to a file: … > {choice.topology.name}.toml"), err=True)
    return Exit.OK


_SPOKEN = {"as-it-is": "as it is", "beside": "by a policy", "migrated": "by a migration"}


def _definition(table: Headers) -> str:
    from hopback.topology.wording import show_value

    return ", ".join(f"{key}: {show_value(value)}" for key, value in table.items())


def _choice_data(choice: AdoptionChoice) -> dict[str, object]:
    from hopback.topology.document import to_document

    return {
        "way": str(choice.way),
        "refused": list(choice.refused),
        "findings": [{**asdict(one), "severity": str(one.severity)} for one in choice.findings],
        "notes": list(choice.notes),
        "decorator": choice.decorator or None,
        "topology": to_document(choice.topology),
    }


def _adoption_data(
    found: Adoption,
    reading: QueueReading,
    holders: tuple[str, ...],
    looked_at: dict[str, Survey | str],
) -> dict[str, object]:
    from hopback.ops.contract.codec import to_json
    from hopback.topology.arguments import encode_table

    queue, policy = found.queue, found.policy
    return {
        "queue": {
            "name": queue.name,
            "type": str(queue.type),
            "durable": queue.durable,
            "exclusive": queue.exclusive,
            "auto_delete": queue.auto_delete,
            "arguments": encode_table(queue.arguments),
        },
        "policy": policy and {"name": policy.name, "definition": encode_table(policy.definition)},
        "operator_policy": reading.operator_policy,
        "bindings": [
            {
                "exchange": one.source,
                "key": one.routing_key,
                "arguments": encode_table(one.arguments),
            }
            for one in found.bindings
        ],
        "ready": reading.counts.ready,
        "unacked": reading.counts.unacked,
        "consumers": list(holders),
        "dead_letters": {
            name: {"not_looked_at": looked} if isinstance(looked, str) else to_json(looked)
            for name, looked in looked_at.items()
        },
        "choices": [_choice_data(one) for one in found.choices],
    }
