"""`hopback topology check`: what can go wrong, and what to do about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import Exit
from hopback.cli.printing import document, json_text, on_terminal, safe, table
from hopback.cli.targets import (
    Target,
    broker_version_option,
    format_option,
    topology_target,
    vhost_option,
)
from hopback.topology.check import Finding, Severity
from hopback.topology.check import check as find_hazards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.version import BrokerVersion

__all__ = ["check"]


@click.command(short_help="Report hazards, each with its fix.")
@topology_target
@broker_version_option("Judge for this RabbitMQ, for example 3.10 or 4.0; without it, for all.")
@vhost_option
@format_option("table", "json")
@click.option(
    "--detailed-exit-code",
    is_flag=True,
    help="Leave with 10 for any finding, errors or not.",
)
def check(
    name: str,
    hardened: bool,
    params: tuple[tuple[str, str], ...],
    version: BrokerVersion | None,
    vhost: str | None,
    form: str,
    detailed_exit_code: bool,
) -> int:
    """Report the hazards of a SYSTEM or FILE: place, explanation and fix.

    Leaves with 1 if there is an error among them, with 0 otherwise.
    """
    found = find_hazards(Target(name, hardened, params, vhost).topology(), version)
    if form == "json":
        document(json_text(_as_data(name, version, found)))
    else:
        _print(found)
    return _code(found, detailed=detailed_exit_code)


def _code(found: Sequence[Finding], *, detailed: bool) -> Exit:
    if detailed:
        return Exit.FOUND if found else Exit.OK
    return Exit.FAILED if any(f.severity is Severity.ERROR for f in found) else Exit.OK


def _as_data(
    name: str, version: BrokerVersion | None, found: Sequence[Finding]
) -> dict[str, object]:
    return {
        "topology": name,
        "broker_version": None if version is None else str(version),
        "findings": [{**asdict(finding), "severity": str(finding.severity)} for finding in found],
    }


def _print(found: Sequence[Finding]) -> None:
    if on_terminal() and found:
        table(("severity", "place", "what it is and how to mend it"), map(_as_row, found))
    else:
        for finding in found:
            click.echo(_as_text(finding))
    click.echo(_summary(found))


def _as_row(finding: Finding) -> tuple[str, str, str]:
    words = f"{safe(finding.explanation)}\nFix: {safe(finding.fix)}\n[{finding.rule}]\n"
    return finding.severity, safe(finding.place), words


def _as_text(finding: Finding) -> str:
    head = f"{finding.severity}: {safe(finding.place)} [{finding.rule}]"
    return "\n".join(
        (_wrap(head), _wrap(finding.explanation, 2), _wrap(f"Fix: {finding.fix}", 2), "")
    )


def _wrap(text: str, indent: int = 0) -> str:
    """Lines of readable width; names are never broken, so that they can be searched for."""
    margin = " " * indent
    return fill(
        safe(text),
        96,
        initial_indent=margin,
        subsequent_indent=margin or "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _summary(found: Sequence[Finding]) -> str:
    if not found:
        return "No findings."
    counts = Counter(finding.severity for finding in found)
    parts = [_counted(counts[severity], severity) for severity in Severity if counts[severity]]
    return f"Found {', '.join(parts)}."


def _counted(number: int, severity: Severity) -> str:
    plural = "s" if number > 1 and severity is not Severity.INFO else ""
    return f"{number} {severity}{plural}"
