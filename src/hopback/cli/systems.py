"""`hopback systems`: the designs there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import did_you_mean, format_option
from hopback.cli.terminal import document, json_text, table
from hopback.designs import DESIGNS

if TYPE_CHECKING:
    from hopback.designs import Design

__all__ = ["systems"]


@click.command(short_help="List the documented designs, or describe one.")
@click.argument("name", required=False)
@format_option("table", "json")
def systems(name: str | None, form: str) -> None:
    """List the documented designs and Hopback's own, or describe NAME and its parameters."""
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
    else:
        _describe(design)


def _describe(design: Design) -> None:
    """The design in its own words: the docstring of the function that builds it."""
    from inspect import getdoc

    click.echo(f"{design.name}: {design.summary}\n")
    click.echo(f"{getdoc(design.factory) or design.summary}\n")
    if design.parameters:
        rows = [(p.name, p.default, p.expected, p.summary) for p in design.parameters]
        table(("parameter", "default", "expected", "meaning"), rows)
        click.echo()
    name = design.name
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
