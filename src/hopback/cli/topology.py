"""The commands that need no broker: `hopback topology show`, `check`, `export` and `diagram`, and
`hopback systems`.

`plan`, `apply`, `migrate` and `revert` use a broker and are in `live_broker`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import did_you_mean, format_option
from hopback.cli.terminal import document, json_text, on_terminal, table, wrap_text
from hopback.cli.topology_options import (
    TopologySource,
    broker_version_option,
    topology_source,
    vhost_option,
)
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.designs import Design
    from hopback.topology.hazards.rule import Finding
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion

_VERSION = "RabbitMQ version of the definitions. Unsupported objects are omitted and reported."


internal_option = click.option(
    "--internal",
    is_flag=True,
    help="Include retry, dead-letter, delay and schedule queues in an AsyncAPI document.",
)


@click.command(short_help="Show exchanges, queues and plans.")
@topology_source
@broker_version_option(_VERSION)
@vhost_option
@internal_option
@format_option("table", "json", "toml", "definitions", "mermaid", "asyncapi")
def show(
    source: TopologySource,
    version: BrokerVersion | None,
    vhost: str | None,
    internal: bool,
    form: str,
) -> None:
    """Show the exchanges, queues, bindings and plans of a SYSTEM, FILE or application."""
    topology = _discreet(source.topology(), form, "`topology export --with-secrets` writes")
    _print_form(topology, form, version, vhost, source, internal=internal)


@click.command(short_help="Export RabbitMQ definitions or another format.")
@topology_source
@broker_version_option(_VERSION)
@vhost_option
@click.option(
    "--with-secrets",
    is_flag=True,
    help="Include users with password hashes, and parameters with credentials.",
)
@click.option(
    "--cluster",
    default="rabbitmq",
    show_default=True,
    metavar="NAME",
    help="RabbitmqCluster of the kubernetes format.",
)
@internal_option
@format_option(
    "definitions", "kubernetes", "terraform", "toml", "json", "mermaid", "asyncapi", "table"
)
def export(
    source: TopologySource,
    version: BrokerVersion | None,
    vhost: str | None,
    with_secrets: bool,
    cluster: str,
    internal: bool,
    form: str,
) -> None:
    """Export a SYSTEM, FILE or application, by default as RabbitMQ definitions.

    `kubernetes` writes resources of RabbitMQ's Messaging Topology Operator. `terraform` writes
    resources of the provider cyrilgdn/rabbitmq for a .tf.json file.
    """
    topology = source.topology()
    if not with_secrets:
        topology = _discreet(topology, form, "`--with-secrets` keeps")
    if form in ("kubernetes", "terraform"):
        _print_resources(topology, form, version, vhost or "/", cluster)
        return
    _print_form(topology, form, version, vhost, source, internal=internal)


@click.command(short_help="Draw a Mermaid diagram.")
@topology_source
@click.option(
    "--diagram",
    "kind",
    type=click.Choice(("flow", "sequence", "states")),
    default="flow",
    show_default=True,
    help="Routes of messages, path of one message, or its states.",
)
@click.option("--queue", help="Queue of the message, for sequence and states.")
@format_option("mermaid")
def diagram(
    source: TopologySource,
    kind: str,
    queue: str | None,
    form: str,
) -> None:
    """Draw a SYSTEM, FILE or application as a Mermaid diagram."""
    document(_draw(source.topology(), kind, queue))


def _discreet(topology: Topology, form: str, how: str) -> Topology:
    """Remove password hashes and credentials and print a note about it. No note is needed for
    tables and diagrams, which don't contain them.
    """
    from hopback.topology.definitions import without_secrets

    found, left_out = without_secrets(topology)
    if form in ("json", "toml", "definitions"):
        for sentence in left_out:
            click.echo(f"Note: {safe(sentence)}; {how} them.", err=True)
    return found


def _print_form(
    topology: Topology,
    form: str,
    version: BrokerVersion | None,
    vhost: str | None,
    source: TopologySource,
    *,
    internal: bool,
) -> None:
    """Print a topology in a format. Only the modules that are needed for this format are imported."""
    match form:
        case "table":
            from hopback.topology.table import write_table

            document(write_table(topology))
        case "json":
            from hopback.topology.document import to_document

            document(json_text(to_document(topology)))
        case "toml":
            from hopback.topology.document import write_toml

            document(write_toml(topology))
        case "mermaid":
            document(_draw(topology, "flow", None))
        case "asyncapi":
            from hopback.topology.asyncapi import write_asyncapi

            # Only the handlers of an application define message types. A design or a file does not.
            payloads, app = None, source.app()
            if app is not None:
                from hopback.runtime.message_types import payload_schemas

                payloads = payload_schemas(app)
            document(json_text(write_asyncapi(topology, payloads=payloads, internal=internal)))
        case "definitions":
            from hopback.topology.definitions import write_definitions

            definitions, left_out = write_definitions(topology, version=version, vhost=vhost)
            for sentence in left_out:
                click.echo(f"Note: {safe(sentence)}", err=True)
            document(json_text(definitions))


def _print_resources(
    topology: Topology, form: str, version: BrokerVersion | None, vhost: str, cluster: str
) -> None:
    from hopback.topology.definitions import without_unexportable
    from hopback.topology.provisioning import write_kubernetes, write_terraform

    fitting, notes = without_unexportable(topology, version)
    if form == "kubernetes":
        resources, more = write_kubernetes(fitting, cluster=cluster, vhost=vhost)
    else:
        resources, more = write_terraform(fitting, vhost=vhost)
    for sentence in (*notes, *more):
        click.echo(f"Note: {safe(sentence)}", err=True)
    document(json_text(resources))


def _draw(topology: Topology, kind: str, queue: str | None) -> str:
    from hopback.topology import diagram as diagrams

    if kind == "flow":
        return diagrams.draw_flow(topology)
    draw = diagrams.draw_sequence if kind == "sequence" else diagrams.draw_states
    return draw(topology, queue)


@click.command(short_help="Report hazards, each with its fix.")
@topology_source
@broker_version_option("RabbitMQ version to check for, for example 3.10 or 4.0. Default: all.")
@vhost_option
@format_option("table", "json")
@click.option(
    "--detailed-exit-code",
    is_flag=True,
    help="Exit with status 10 on any finding.",
)
def check(
    source: TopologySource,
    version: BrokerVersion | None,
    vhost: str | None,
    form: str,
    detailed_exit_code: bool,
) -> int:
    """Report the hazards of a SYSTEM, FILE or application, each with its place, an explanation and
    a fix.

    If the file contains definitions that were exported by a broker, they are checked for the
    version of the broker unless --broker-version is given. Exits with status 1 if a finding is an
    error, otherwise 0.
    """
    from hopback.topology.check import check as find_hazards
    from hopback.topology.hazards.rule import Severity
    from hopback.version import BrokerVersion

    topology = source.topology()
    exported_by = topology.foreign.get("rabbit_version")
    if version is None and isinstance(exported_by, str):
        with suppress(ValueError):  # ignore texts that are not a version
            version = BrokerVersion.parse(exported_by)
    found = find_hazards(topology, version)
    if form == "json":
        data = {
            "topology": source.name,
            "broker_version": None if version is None else str(version),
            "findings": [{**asdict(one), "severity": str(one.severity)} for one in found],
        }
        document(json_text(data))
    else:
        print_findings(found)
    if detailed_exit_code:
        return Exit.FOUND if found else Exit.OK
    return Exit.FAILED if any(one.severity is Severity.ERROR for one in found) else Exit.OK


def print_findings(found: Sequence[Finding]) -> None:
    """Print findings as a table on a terminal and as text otherwise, and then their number by
    severity.
    """
    if on_terminal() and found:
        rows = (
            (
                one.severity,
                safe(one.place),
                f"{safe(one.explanation)}\nFix: {safe(one.fix)}\n[{one.rule}]\n",
            )
            for one in found
        )
        table(("severity", "place", "problem and fix"), rows)
    else:
        for one in found:
            click.echo(wrap_text(f"{one.severity}: {one.place} [{one.rule}]"))
            click.echo(wrap_text(one.explanation, "  "))
            click.echo(wrap_text(f"Fix: {one.fix}", "  ") + "\n")
    counts = Counter(one.severity for one in found)  # the findings are ordered by severity
    parts = [
        f"{number} {severity}" + ("s" if number > 1 and severity != "info" else "")
        for severity, number in counts.items()
    ]
    click.echo(f"Found {', '.join(parts)}." if parts else "No findings.")


@click.command(short_help="List the documented designs, or describe one.")
@click.argument("name", required=False)
@format_option("table", "json")
def systems(name: str | None, form: str) -> None:
    """List the documented designs and Hopback's own, or describe the design NAME and its
    parameters.
    """
    from inspect import getdoc

    from hopback.designs import DESIGNS

    if name is None:
        if form == "json":
            document(json_text([_as_data(design) for design in DESIGNS.values()]))
        else:
            rows = [(design.name, design.summary) for design in DESIGNS.values()]
            table(("name", "summary"), rows)
        return
    design = DESIGNS.get(name)
    if design is None:
        raise CommandFailed(
            f"expected a system, got {name!r}",
            do=f"{did_you_mean(name, DESIGNS)}Systems are {', '.join(DESIGNS)}.",
            code=Exit.NOT_FOUND,
        )
    if form == "json":
        document(json_text(_as_data(design)))
        return
    # Print the docstring of the function that builds the design.
    click.echo(f"{name}: {design.summary}\n")
    click.echo(f"{getdoc(design.factory) or design.summary}\n")
    if design.parameters:
        parameters = [(p.name, p.default, p.expected, p.summary) for p in design.parameters]
        table(("parameter", "default", "expected", "meaning"), parameters)
        click.echo()
    run = f"; hopback demo {name}" if design.documented else ""
    click.echo(f"Next: hopback topology show {name}; hopback topology check {name}{run}")


def _as_data(design: Design) -> dict[str, object]:
    parameters = [
        {"name": p.name, "default": p.default, "expected": p.expected, "summary": p.summary}
        for p in design.parameters
    ]
    return {
        "name": design.name,
        "summary": design.summary,
        "documented": design.documented,
        "parameters": parameters,
    }
