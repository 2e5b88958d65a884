"""What the doctor found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hopback.cli.printing import safe, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.broker.doctor import Examination

__all__ = ["examination_data", "print_examination"]


def print_examination(found: Examination) -> None:
    """First what it is, then what asks for action, then what to know."""
    click.echo(safe(_headline(found)))
    rows = [*_urgent(found), *_findings(found)]
    if rows:
        table(("severity", "place", "what it is and what to do"), rows)
    for notice in found.notices:
        click.echo(safe(f"{'!' if notice.urgent else '-'} {notice.text}"))
    for limit in found.lifted:
        click.echo(safe(f"- Hopback has lifted the delivery limit of {limit.queue}."))
    disabled = [flag.name for flag in found.flags if not flag.enabled]
    if disabled:
        click.echo(safe(f"- Feature flags not enabled: {', '.join(disabled)}."))
    click.echo("Healthy." if found.healthy else "Something asks for action.")


def _headline(found: Examination) -> str:
    queues = "" if found.queues is None else f", {found.queues} queues in {found.vhost!r}"
    cluster = f" ({found.overview.cluster})" if found.overview else ""
    return f"{found.address}: RabbitMQ {found.version}{cluster}{queues}"


def _urgent(found: Examination) -> Iterator[tuple[str, str, str]]:
    for alarm in found.alarms:
        words = f"{alarm.resource} alarm: the broker takes no publishes until it clears."
        yield "error", f"node {alarm.node}", words
    for trouble in found.troubles:
        yield "error", f"queue {trouble.queue}", f"it is {trouble.state}; look at its nodes."
    for held in found.held_back:
        words = (
            f"{held.messages} dead letters are held back because no queue takes them (at most "
            f"{held.lag_s:g} s old). If the number does not fall: mend the dead-letter exchange, "
            "its binding or the full queue behind it; the broker tries again every 3 minutes."
        )
        yield "error", f"queue {held.queue}", words


def _findings(found: Examination) -> Iterator[tuple[str, str, str]]:
    for finding in found.findings:
        words = f"{finding.explanation} Fix: {finding.fix} [{finding.rule}]"
        yield str(finding.severity), finding.place, words


def examination_data(found: Examination) -> dict[str, object]:
    """The examination as JSON."""
    return {
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
