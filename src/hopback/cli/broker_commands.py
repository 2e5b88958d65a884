"""The commands that talk to a live broker: `topology plan`, `apply` and `revert`, and `doctor`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from hopback.cli.asking import ask
from hopback.cli.broker_access import Access, Reached, broker_options, reach
from hopback.cli.doctor_printing import examination_data, print_examination
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.plan_printing import plan_data, print_plan
from hopback.cli.printing import document, json_text, safe
from hopback.cli.targets import Target, format_option, topology_target

if TYPE_CHECKING:
    from hopback.broker.apply import Applied, ApplyPlan
    from hopback.broker.doctor import Examination
    from hopback.broker.policies import LiftedLimit
    from hopback.topology.model import Topology

__all__ = ["apply", "doctor", "plan", "revert"]

_Params = tuple[tuple[str, str], ...]


@click.command(short_help="Compare with a live broker; change nothing.")
@topology_target
@broker_options
@format_option("table", "json")
@click.option(
    "--detailed-exit-code", is_flag=True, help="Leave with 10 if there is anything to do."
)
def plan(
    name: str,
    hardened: bool,
    params: _Params,
    broker: str,
    management: str | None,
    amqp_only: bool,
    form: str,
    detailed_exit_code: bool,
) -> int:
    """Compare a SYSTEM or FILE with a live broker and say what `apply` would do."""
    access = Access(broker, management, amqp_only)
    planned = asyncio.run(_plan(access, Target(name, hardened, params).topology()))
    _show(planned, form)
    return Exit.FOUND if detailed_exit_code and not planned.settled else Exit.OK


@click.command(short_help="Create on a live broker what is missing.")
@topology_target
@broker_options
@format_option("table", "json")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop, as `plan` does.")
@click.option(
    "--replace",
    multiple=True,
    metavar="NAME",
    help="Replace this queue (classic, empty and unused only) or policy; repeatable.",
)
@click.option(
    "--skip-conflicts", is_flag=True, help="Create the rest although something is in conflict."
)
@click.option(
    "--lift-main-limits",
    is_flag=True,
    help="Also set the offered policies that lift the delivery limits of main queues.",
)
def apply(
    name: str,
    hardened: bool,
    params: _Params,
    broker: str,
    management: str | None,
    amqp_only: bool,
    form: str,
    yes: bool,
    dry_run: bool,
    replace: tuple[str, ...],
    skip_conflicts: bool,
    lift_main_limits: bool,
) -> int:
    """Create on a live broker what a SYSTEM or FILE has and the broker lacks.

    Shows the plan first and asks. Nothing is deleted or replaced unless named with --replace. Safe
    to repeat; after an interruption simply run it again.
    """
    choices = _Choices(form, yes, dry_run, frozenset(replace), skip_conflicts, lift_main_limits)
    desired = Target(name, hardened, params).topology()
    return asyncio.run(_apply(Access(broker, management, amqp_only), desired, choices))


@click.command(short_help="Take back the delivery limits that apply has lifted.")
@broker_options
@format_option("table", "json")
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Only of this queue; repeatable."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def revert(
    broker: str,
    management: str | None,
    amqp_only: bool,
    form: str,
    queues: tuple[str, ...],
    yes: bool,
) -> int:
    """Delete the policies by which `apply` lifted delivery limits.

    What was in force before is in force again. On RabbitMQ 4.0 and later looking at a dead-letter
    queue then counts against its limit. Refused while the queue has messages that came back so often
    that the limit would remove them.
    """
    if not yes:
        ask("Put the former delivery limits back in force?")
    taken = asyncio.run(_revert(Access(broker, management, amqp_only), queues))
    if form == "json":
        document(json_text({"restored": [limit.queue for limit in taken]}))
    else:
        for limit in taken:
            click.echo(safe(f"restored {limit.queue} (policy {limit.policy.name} deleted)"))
        click.echo(f"{len(taken)} limits restored.")
    return Exit.OK


@click.command(short_help="Look at a live broker and say what is wrong.")
@broker_options
@format_option("table", "json")
@click.option("--detailed-exit-code", is_flag=True, help="Leave with 10 if anything was found.")
def doctor(
    broker: str, management: str | None, amqp_only: bool, form: str, detailed_exit_code: bool
) -> int:
    """Look at a live broker: version, alarms, feature flags, and the hazards of its topology.

    Leaves with 1 if something asks for action, with 0 otherwise. Changes nothing.
    """
    found = asyncio.run(_examine(Access(broker, management, amqp_only)))
    if form == "json":
        document(json_text(examination_data(found)))
    else:
        print_examination(found)
    if detailed_exit_code:
        return Exit.FOUND if found.findings or not found.healthy else Exit.OK
    return Exit.OK if found.healthy else Exit.FAILED


@dataclass(frozen=True, slots=True)
class _Choices:
    """What the user chose for `apply`."""

    form: str
    yes: bool
    dry_run: bool
    replace: frozenset[str]
    skip_conflicts: bool
    lift_main_limits: bool


async def _plan(access: Access, desired: Topology) -> ApplyPlan:
    from hopback.broker.apply import live_plan

    async with reach(access) as broker:
        return await live_plan(desired, broker.connection, broker.management, broker.vhost)


async def _examine(access: Access) -> Examination:
    from hopback.broker.doctor import examine

    async with reach(access) as broker:
        version = broker.connection.version
        return await examine(broker.address, broker.vhost, version, broker.management)


async def _revert(access: Access, queues: tuple[str, ...]) -> tuple[LiftedLimit, ...]:
    from hopback.broker.apply import restore_limits

    async with reach(access) as broker:
        if broker.management is None:
            raise CommandFailed(
                "policies can only be changed through the management API",
                do="Name it with --management URL.",
                code=Exit.UNREACHABLE,
            )
        return await restore_limits(
            broker.connection, broker.management, broker.vhost, queues or None
        )


async def _apply(access: Access, desired: Topology, choices: _Choices) -> int:
    from hopback.broker.apply import live_plan

    async with reach(access) as broker:
        planned = await live_plan(desired, broker.connection, broker.management, broker.vhost)
        if choices.form == "table":
            print_plan(planned)
        if choices.dry_run or _nothing_to_do(planned, choices):
            if choices.form == "json":
                document(json_text({"plan": plan_data(planned), "done": []}))
            return Exit.OK
        if not choices.yes:
            ask("Apply?")
        applied = await _carry_out(planned, broker, choices)
    if choices.form == "json":
        document(json_text({"plan": plan_data(planned), "done": list(applied.done)}))
    else:
        click.echo(f"Done: {len(applied.done)} changes.")
    return Exit.PARTIAL if applied.left else Exit.OK


def _nothing_to_do(planned: ApplyPlan, choices: _Choices) -> bool:
    return planned.settled and not (choices.lift_main_limits and planned.offers)


async def _carry_out(planned: ApplyPlan, broker: Reached, choices: _Choices) -> Applied:
    from hopback.broker.apply import apply as carry_out

    return await carry_out(
        planned,
        broker.connection,
        broker.management,
        vhost=broker.vhost,
        replace=choices.replace,
        skip_conflicts=choices.skip_conflicts,
        take_offers=choices.lift_main_limits,
        on_done=lambda text: click.echo(safe(text), err=True),
    )


def _show(planned: ApplyPlan, form: str) -> None:
    if form == "json":
        document(json_text(plan_data(planned)))
    else:
        print_plan(planned)
