"""`topology migrate`: bring queues that exist in another form to the declared one, with their messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from hopback.cli.asking import ask
from hopback.cli.broker_access import Access, Reached, broker_options, reach
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.printing import document, json_text, safe
from hopback.cli.targets import Target, format_option, topology_target

if TYPE_CHECKING:
    from hopback.broker.migrate import Migration
    from hopback.topology.model import Topology

__all__ = ["migrate"]


@click.command(short_help="Replace queues of another form, keeping their messages.")
@topology_target
@broker_options
@format_option("table", "json")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
def migrate(
    name: str,
    hardened: bool,
    params: tuple[tuple[str, str], ...],
    broker: str,
    management: str | None,
    amqp_only: bool,
    form: str,
    yes: bool,
    dry_run: bool,
) -> int:
    """Bring the queues of a live broker to the form that a SYSTEM or FILE declares.

    Each queue that differs is replaced through a shadow queue; its messages, bindings and counted
    attempts are kept. Stop the consumers first. After an interruption run it again.
    """
    desired = Target(name, hardened, params).topology()
    access = Access(broker, management, amqp_only)
    return asyncio.run(_migrate(access, desired, form=form, yes=yes, dry_run=dry_run))


async def _migrate(
    access: Access, desired: Topology, *, form: str, yes: bool, dry_run: bool
) -> int:
    async with reach(access) as broker:
        planned = await _plan(broker, desired)
        if form == "table":
            _print(planned)
        moved = 0
        if not dry_run and planned.replacements:
            if not yes:
                ask("Migrate?")
            moved = await _carry_out(broker, planned)
    if form == "json":
        document(json_text({"plan": _data(planned), "moved": moved}))
    elif moved or not dry_run:
        click.echo(f"Done: {moved} messages moved.")
    return Exit.OK


async def _plan(broker: Reached, desired: Topology) -> Migration:
    from hopback.broker.migrate import migration

    if broker.management is None:
        raise CommandFailed(
            "bindings can only be seen through the management API",
            do="Name it with --management URL.",
            code=Exit.UNREACHABLE,
        )
    return migration(desired, await broker.management.live_topology(broker.vhost))


async def _carry_out(broker: Reached, planned: Migration) -> int:
    from hopback.broker.migrate import migrate as carry_out

    return await carry_out(
        broker.connection,
        planned,
        lambda text: click.echo(safe(text), err=True),
        management=broker.management,
        vhost=broker.vhost,
    )


def _print(planned: Migration) -> None:
    if not planned.replacements:
        click.echo("Nothing to migrate: every queue has its declared form, or does not exist.")
    for one in planned.replacements:
        how = "goes on with an interrupted migration" if one.resumed else "is replaced"
        text = (
            f"{one.queue.name} {how}: {one.old_type} -> {one.queue.type}, through {one.shadow.name}"
        )
        click.echo(safe(text))
    for obstacle in planned.obstacles:
        click.echo(safe(f"in the way: {obstacle}"))


def _data(planned: Migration) -> dict[str, object]:
    return {
        "replacements": [
            {
                "queue": one.queue.name,
                "from": str(one.old_type),
                "to": str(one.queue.type),
                "shadow": one.shadow.name,
                "resumed": one.resumed,
            }
            for one in planned.replacements
        ],
        "obstacles": list(planned.obstacles),
    }
