"""The commands that use a live broker: `topology plan`, `apply`, `migrate` and `revert`, and
`doctor`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from hopback.cli.broker_options import Access, Reached, broker_options, reach
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import format_option
from hopback.cli.terminal import ask, document, json_text, on_terminal, table, wrap_text
from hopback.cli.topology_options import TopologySource, topology_source
from hopback.text import one_line as safe
from hopback.text import safe_lines

if TYPE_CHECKING:
    from hopback.broker.apply import ApplyPlan
    from hopback.broker.doctor import Examination
    from hopback.broker.limits import LiftedLimit
    from hopback.broker.management import Management
    from hopback.broker.migrate import Migration
    from hopback.topology.model import Topology


@click.command(short_help="Compare with a live broker.")
@topology_source
@broker_options
@format_option("table", "json")
@click.option(
    "--detailed-exit-code", is_flag=True, help="Exit with status 10 if changes are pending."
)
def plan(
    source: TopologySource,
    access: Access,
    form: str,
    detailed_exit_code: bool,
) -> int:
    """Compare a SYSTEM, FILE or application with a live broker and list the changes that `apply`
    would make.
    """
    from hopback.broker.apply import live_plan

    desired = source.topology()

    async def compare() -> ApplyPlan:
        async with reach(access) as live:
            return await live_plan(desired, live.connection, live.management, live.vhost)

    planned = asyncio.run(compare())
    if form == "json":
        document(json_text(_plan_data(planned)))
    else:
        _print_plan(planned)
    return Exit.FOUND if detailed_exit_code and not planned.is_up_to_date else Exit.OK


@click.command(short_help="Create missing objects on a live broker.")
@topology_source
@broker_options
@format_option("table", "json")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop, as `plan` does.")
@click.option(
    "--replace",
    multiple=True,
    metavar="NAME",
    help="Replace this queue (only if classic, empty and unused) or policy. Repeatable.",
)
@click.option("--skip-conflicts", is_flag=True, help="Create the other objects despite conflicts.")
@click.option(
    "--lift-main-limits",
    is_flag=True,
    help="Also set the proposed policies that lift the delivery limits of main queues.",
)
def apply(
    source: TopologySource,
    access: Access,
    form: str,
    yes: bool,
    dry_run: bool,
    replace: tuple[str, ...],
    skip_conflicts: bool,
    lift_main_limits: bool,
) -> int:
    """Create the missing objects of a SYSTEM, FILE or application on a live broker.

    The plan is shown before the confirmation. Objects are only deleted or replaced if they are
    named with --replace. The command can be repeated, for example after an interruption.
    """
    desired = source.topology()
    choices = _ApplyChoices(
        form, yes, dry_run, frozenset(replace), skip_conflicts, lift_main_limits
    )
    return asyncio.run(_apply(access, desired, choices))


@dataclass(frozen=True, slots=True)
class _ApplyChoices:
    """The options of `apply`."""

    form: str
    yes: bool
    dry_run: bool
    replace: frozenset[str]
    skip_conflicts: bool
    lift_main_limits: bool


async def _apply(access: Access, desired: Topology, choices: _ApplyChoices) -> int:
    from hopback.broker.apply import apply as carry_out
    from hopback.broker.apply import live_plan

    done: tuple[str, ...] = ()
    left = False
    async with reach(access) as broker:
        planned = await live_plan(desired, broker.connection, broker.management, broker.vhost)
        if choices.form == "table":
            _print_plan(planned)
        offered = choices.lift_main_limits and planned.offers
        acts = not choices.dry_run and (offered or not planned.is_up_to_date)
        if acts:
            if not choices.yes:
                ask("Apply?")
            applied = await carry_out(
                planned,
                broker.connection,
                broker.management,
                vhost=broker.vhost,
                replace=choices.replace,
                skip_conflicts=choices.skip_conflicts,
                take_offers=choices.lift_main_limits,
                on_done=lambda text: click.echo(safe(text), err=True),
            )
            done, left = tuple(applied.done), bool(applied.left)
    if choices.form == "json":
        document(json_text({"plan": _plan_data(planned), "done": list(done)}))
    elif acts:
        click.echo(f"Done: {len(done)} changes.")
    return Exit.PARTIAL if left else Exit.OK


@click.command(short_help="Restore the delivery limits that apply has lifted.")
@broker_options
@format_option("table", "json")
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Only this queue. Repeatable."
)
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
def revert(
    access: Access,
    form: str,
    queues: tuple[str, ...],
    yes: bool,
) -> int:
    """Delete the policies with which `apply` has lifted delivery limits.

    After this, the previous limits apply again. On RabbitMQ 4.0 and later, browsing a dead-letter
    queue then counts towards its limit. The command fails if the limit would remove messages from
    the queue.
    """
    if not yes:
        ask("Restore the previous delivery limits?")
    from hopback.broker.limits import restore_limits

    async def restore() -> tuple[LiftedLimit, ...]:
        async with reach(access) as live:
            api = _require_management(live, "policies can only be changed")
            return await restore_limits(live.connection, api, live.vhost, queues or None)

    taken = asyncio.run(restore())
    if form == "json":
        document(json_text({"restored": [limit.queue for limit in taken]}))
    else:
        for limit in taken:
            click.echo(safe(f"restored {limit.queue} (policy {limit.policy.name} deleted)"))
        click.echo(f"{len(taken)} limits restored.")
    return Exit.OK


def _require_management(broker: Reached, why: str) -> Management:
    """Return the management API. Fails if it is not available."""
    if broker.management is None:
        raise CommandFailed(
            f"{why} through the management API",
            do="Name it with --management URL.",
            code=Exit.UNREACHABLE,
        )
    return broker.management


def _print_plan(planned: ApplyPlan) -> None:
    if planned.steps:
        rows = [(f"+ {step.kind}", step.name, step.why) for step in planned.steps]
        table(("create", "name", "why"), rows)
    for conflict in planned.conflicts:
        click.echo(safe_lines(f"! {conflict}"))
    for risk in planned.at_risk:
        click.echo(safe(f"! {risk}"))
    for offer in planned.offers:
        click.echo(safe(f"? policy {offer.policy.name}: {offer.why} (--lift-main-limits)"))
    for note in planned.notes:
        click.echo(safe(f"  {note}"))
    others = Counter(str(entry.kind) for entry in planned.diff.extra)
    left = ", ".join(f"{count} {kind}" for kind, count in others.items())
    if planned.is_up_to_date:
        summary = f"Nothing to do: {len(planned.diff.same)} objects are as desired."
    else:
        summary = (
            f"{len(planned.steps)} to create, {len(planned.diff.same)} as desired, "
            f"{len(planned.diff.conflict)} in conflict."
        )
    click.echo(summary + (f" Left alone: {left}." if left else ""))


def _plan_data(planned: ApplyPlan) -> dict[str, object]:
    found = planned.diff
    return {
        "broker_version": str(planned.version),
        "settled": planned.is_up_to_date,
        "create": [
            {"kind": str(step.kind), "name": step.name, "why": step.why} for step in planned.steps
        ],
        "same": [{"kind": str(entry.kind), "name": entry.name} for entry in found.same],
        "extra": [{"kind": str(entry.kind), "name": entry.name} for entry in found.extra],
        "conflicts": [
            {
                "kind": str(conflict.kind),
                "name": conflict.name,
                "differences": [
                    {
                        "field": one.field,
                        "desired": one.desired,
                        "actual": one.actual,
                        "advice": one.advice,
                    }
                    for one in conflict.differences
                ],
            }
            for conflict in found.conflict
        ],
        "at_risk": [
            {
                "queue": risk.queue,
                "messages": risk.messages,
                "ready": risk.ready,
                "unacked": risk.unacked,
                "held_back": risk.held_back,
                "consumers": risk.consumers,
                "lag_s": risk.lag_s,
            }
            for risk in planned.at_risk
        ],
        "offers": [
            {"queue": offer.queue, "policy": offer.policy.name, "why": offer.why}
            for offer in planned.offers
        ],
        "notes": list(planned.notes),
    }


@click.command(short_help="Recreate queues that differ, keeping their messages.")
@topology_source
@broker_options
@format_option("table", "json")
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
def migrate(
    source: TopologySource,
    access: Access,
    form: str,
    yes: bool,
    dry_run: bool,
) -> int:
    """Recreate queues of a live broker that differ from a SYSTEM, FILE or application.

    The messages are moved through a shadow queue. Messages, bindings and attempt counts are kept.
    Stop the consumers first. If the command is interrupted, run it again.
    """
    desired = source.topology()
    return asyncio.run(_migrate(access, desired, form=form, yes=yes, dry_run=dry_run))


async def _migrate(
    access: Access, desired: Topology, *, form: str, yes: bool, dry_run: bool
) -> int:
    from hopback.broker.migrate import migrate as carry_out
    from hopback.broker.migrate import migration

    async with reach(access) as broker:
        management = _require_management(broker, "bindings can only be seen")
        planned = migration(desired, await management.live_topology(broker.vhost))
        if planned.obstacles and not planned.replacements and not dry_run:
            listed = "\n".join(planned.obstacles)
            raise CommandFailed(
                f"no changes were made: there is no queue to migrate, but\n{listed}",
                do="Declare an exchange as the broker has it, or use a new name. `hopback topology apply"
                " --replace NAME` replaces a policy.",
                code=Exit.CONFLICT,
            )
        if form == "table":
            _print_migration(planned)
        moved = 0
        if not dry_run and planned.replacements:
            if not yes:
                ask("Migrate?")
            moved = await carry_out(
                broker.connection,
                planned,
                lambda text: click.echo(safe(text), err=True),
                management=management,
                vhost=broker.vhost,
            )
    if form == "json":
        replacements = [
            {
                "queue": one.queue.name,
                "from": str(one.old_type),
                "to": str(one.queue.type),
                "shadow": one.shadow.name,
                "resumed": one.resumed,
            }
            for one in planned.replacements
        ]
        summary = {"replacements": replacements, "obstacles": list(planned.obstacles)}
        document(json_text({"plan": summary, "moved": moved}))
    elif moved or not dry_run:
        click.echo(f"Done: {moved} messages moved.")
    return Exit.OK


def _print_migration(planned: Migration) -> None:
    if not planned.replacements:
        click.echo("Nothing to migrate: every queue has its declared form, or does not exist.")
    for one in planned.replacements:
        how = "continues an interrupted migration" if one.resumed else "is replaced"
        text = (
            f"{one.queue.name} {how}: {one.old_type} -> {one.queue.type}, through {one.shadow.name}"
        )
        click.echo(safe(text))
    for obstacle in planned.obstacles:
        click.echo(safe(f"obstacle: {obstacle}"))


@click.command(short_help="Report problems of a live broker.")
@broker_options
@format_option("table", "json")
@click.option("--detailed-exit-code", is_flag=True, help="Exit with status 10 on any finding.")
def doctor(access: Access, form: str, detailed_exit_code: bool) -> int:
    """Check the version, alarms, feature flags and topology of a live broker. It is not changed.

    Exits with status 1 if a finding requires action, otherwise 0.
    """
    from hopback.broker.doctor import examine

    async def look() -> Examination:
        async with reach(access) as live:
            version = live.connection.version
            return await examine(live.address, live.vhost, version, live.management)

    found = asyncio.run(look())
    if form == "json":
        data = {
            "broker": found.address,
            "vhost": found.vhost,
            "version": str(found.version),
            "healthy": found.healthy,
            "cluster": found.overview.cluster if found.overview else None,
            "alarms": [asdict(alarm) for alarm in found.alarms],
            "feature_flags": {flag.name: flag.enabled for flag in found.flags},
            "queues": found.queues,
            "held_back": [asdict(held) for held in found.held_back],
            "troubles": [asdict(trouble) for trouble in found.troubles],
            "findings": [
                {**asdict(finding), "severity": str(finding.severity)} for finding in found.findings
            ],
            "notices": [asdict(notice) for notice in found.notices],
            "lifted_limits": [limit.queue for limit in found.lifted],
        }
        document(json_text(data))
    else:
        _print_examination(found)
    if detailed_exit_code:
        return Exit.FOUND if found.findings or not found.healthy else Exit.OK
    return Exit.OK if found.healthy else Exit.FAILED


def _print_examination(found: Examination) -> None:
    """Print the broker, the findings that require action, and the notices."""
    queues = "" if found.queues is None else f", {found.queues} queues in {found.vhost!r}"
    cluster = f" ({found.overview.cluster})" if found.overview else ""
    click.echo(safe(f"{found.address}: RabbitMQ {found.version}{cluster}{queues}"))
    rows = []
    for alarm in found.alarms:
        words = f"{alarm.resource} alarm. The broker blocks publishers until the alarm clears."
        rows.append(("error", f"node {alarm.node}", words))
    for trouble in found.troubles:
        words = f"The queue is {trouble.state}. Check its nodes."
        rows.append(("error", f"queue {trouble.queue}", words))
    for held in found.held_back:
        words = (
            f"{held.messages} dead letters are held back because no queue accepts them (at most "
            f"{held.lag_s:g} s old). If the number does not fall, repair the dead-letter exchange, "
            "its binding or the full queue behind it. The broker tries again every 3 minutes."
        )
        rows.append(("error", f"queue {held.queue}", words))
    for finding in found.findings:
        words = f"{finding.explanation} Fix: {finding.fix} [{finding.rule}]"
        rows.append((str(finding.severity), finding.place, words))
    if rows and on_terminal():
        table(("severity", "place", "problem and remedy"), rows)
    else:  # a table with long sentences would be too wide to read
        for severity, place, words in rows:
            click.echo(f"{wrap_text(f'{severity}: {place}')}\n{wrap_text(words, '  ')}\n")
    for notice in found.notices:
        click.echo(safe(f"{'!' if notice.urgent else '-'} {notice.text}"))
    for limit in found.lifted:
        click.echo(safe(f"- Hopback has lifted the delivery limit of {limit.queue}."))
    disabled = [flag.name for flag in found.flags if not flag.enabled]
    if disabled:
        click.echo(safe(f"- Feature flags not enabled: {', '.join(disabled)}."))
    click.echo("Healthy." if found.healthy else "Action required.")
