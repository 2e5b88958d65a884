"""`hopback topology show`, `export` and `diagram`: one topology in many forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hopback.cli.printing import document, json_text, safe
from hopback.cli.targets import (
    Target,
    broker_version_option,
    format_option,
    topology_target,
    vhost_option,
)

if TYPE_CHECKING:
    from hopback.topology.model import Topology
    from hopback.version import BrokerVersion

__all__ = ["diagram", "export", "show"]

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
    _print(
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
    _print(topology, form, version, vhost)


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


def _print(topology: Topology, form: str, version: BrokerVersion | None, vhost: str | None) -> None:
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
