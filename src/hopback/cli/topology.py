"""`hopback topology`: show, check, export and draw, all without a broker.

`plan`, `apply`, `migrate` and `revert`, which talk to one, live in `live_broker`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import Exit
from hopback.cli.lazy import LazyCommand, LazyGroup
from hopback.cli.options import (
    Target,
    broker_version_option,
    format_option,
    topology_target,
    vhost_option,
)
from hopback.cli.terminal import document, json_text, on_terminal, safe, table
from hopback.topology.check import Finding, Severity
from hopback.topology.check import check as find_hazards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion

__all__ = ["check", "diagram", "export", "show", "topology"]

_COMMANDS = {
    "show": LazyCommand("hopback.cli.topology:show", "Show exchanges, queues and plans."),
    "check": LazyCommand("hopback.cli.topology:check", "Report hazards, each with its fix."),
    "export": LazyCommand(
        "hopback.cli.topology:export", "Write definitions for RabbitMQ, or another form."
    ),
    "diagram": LazyCommand("hopback.cli.topology:diagram", "Draw it as Mermaid."),
    "plan": LazyCommand(
        "hopback.cli.live_broker:plan", "Compare with a live broker; change nothing."
    ),
    "apply": LazyCommand(
        "hopback.cli.live_broker:apply", "Create on a live broker what is missing."
    ),
    "migrate": LazyCommand(
        "hopback.cli.live_broker:migrate",
        "Replace queues of another form, keeping their messages.",
    ),
    "revert": LazyCommand(
        "hopback.cli.live_broker:revert",
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


_VERSION = "For definitions: what this RabbitMQ would refuse is left out, and said."


@click.command(short_help="Show exchanges, queues and plans.")
@topology_target
@broker_version_option(_VERSION)
@vhost_option
@format_option("table", "json", "toml", "definitions", "mermaid", "asyncapi")
def show(
    name: str,
    hardened: bool,
    params: tuple[tuple[str, str], ...],
    version: BrokerVersion | None,
    vhost: str | None,
    form: str,
) -> None:
    """Show the exchanges, queues, bindings and plans of a SYSTEM or FILE."""
    topology = Target(name, hardened, params, vhost).topology()
    _print_form(
        _discreet(topology, form, "`topology export --with-secrets` writes"), form, version, vhost
    )


@click.command(short_help="Write definitions for RabbitMQ, or another form.")
@topology_target
@broker_version_option(_VERSION)
@vhost_option
@click.option(
    "--with-secrets",
    is_flag=True,
    help="Keep users with their password hashes, and parameters with credentials.",
)
@format_option("definitions", "toml", "json", "mermaid", "asyncapi", "table")
def export(
    name: str,
    hardened: bool,
    params: tuple[tuple[str, str], ...],
    version: BrokerVersion | None,
    vhost: str | None,
    with_secrets: bool,
    form: str,
) -> None:
    """Write a SYSTEM or FILE in another form, by default as definitions that RabbitMQ imports."""
    topology = Target(name, hardened, params, vhost).topology()
    if not with_secrets:
        topology = _discreet(topology, form, "`--with-secrets` keeps")
    _print_form(topology, form, version, vhost)


@click.command(short_help="Draw it as Mermaid.")
@topology_target
@click.option(
    "--diagram",
    "kind",
    type=click.Choice(("flow", "sequence", "states")),
    default="flow",
    show_default=True,
    help="Where messages go, how one message travels, or the states it goes through.",
)
@click.option("--queue", help="For sequence and states: the queue whose message is followed.")
@format_option("mermaid")
def diagram(
    name: str,
    hardened: bool,
    params: tuple[tuple[str, str], ...],
    kind: str,
    queue: str | None,
    form: str,
) -> None:
    """Draw a SYSTEM or FILE as Mermaid."""
    document(_drawn(Target(name, hardened, params).topology(), kind, queue))


def _discreet(topology: Topology, form: str, how: str) -> Topology:
    """Without password hashes and credentials, which is said; tables and drawings show none anyway."""
    from hopback.topology.secrets import without_secrets

    found, left_out = without_secrets(topology)
    if form in ("json", "toml", "definitions"):
        for sentence in left_out:
            click.echo(f"Note: {safe(sentence)}; {how} them.", err=True)
    return found


def _print_form(
    topology: Topology, form: str, version: BrokerVersion | None, vhost: str | None
) -> None:
    if form == "definitions":
        document(_definitions(topology, version, vhost))
    else:
        document(_FORMS[form](topology))


def _table(topology: Topology) -> str:
    from hopback.topology.table import write_table

    return write_table(topology)


def _json(topology: Topology) -> str:
    from hopback.topology.document import to_document

    return json_text(to_document(topology))


def _toml(topology: Topology) -> str:
    from hopback.topology.toml import write_toml

    return write_toml(topology)


def _mermaid(topology: Topology) -> str:
    return _drawn(topology, "flow", None)


def _asyncapi(topology: Topology) -> str:
    from hopback.topology.asyncapi import write_asyncapi

    return json_text(write_asyncapi(topology))


_FORMS = {
    "table": _table,
    "json": _json,
    "toml": _toml,
    "mermaid": _mermaid,
    "asyncapi": _asyncapi,
}


def _definitions(topology: Topology, version: BrokerVersion | None, vhost: str | None) -> str:
    """RabbitMQ's own form; what was left out of it is said on stderr."""
    from hopback.topology.definitions import write_definitions

    definitions, left_out = write_definitions(topology, version=version, vhost=vhost)
    for sentence in left_out:
        click.echo(f"Note: {safe(sentence)}", err=True)
    return json_text(definitions)


def _drawn(topology: Topology, kind: str, queue: str | None) -> str:
    from hopback.topology import diagram as diagrams

    if kind == "flow":
        return diagrams.draw_flow(topology)
    draw = diagrams.draw_sequence if kind == "sequence" else diagrams.draw_states
    return draw(topology, queue)


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
        _print_findings(found)
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


def _print_findings(found: Sequence[Finding]) -> None:
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
