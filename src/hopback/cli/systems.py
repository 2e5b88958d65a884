"""`hopback systems`: the designs there are."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import format_option
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
        _list(form)
    else:
        _describe(_find(name), form)


def _list(form: str) -> None:
    if form == "json":
        document(json_text([_as_data(design) for design in DESIGNS.values()]))
    else:
        table(("name", "summary"), [(design.name, design.summary) for design in DESIGNS.values()])


def _find(name: str) -> Design:
    found = DESIGNS.get(name)
    if found is None:
        close = get_close_matches(name, DESIGNS, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise CommandFailed(
            f"expected a system, got {name!r}",
            do=f"{hint}Systems are {', '.join(DESIGNS)}.",
            code=Exit.NOT_FOUND,
        )
    return found


def _describe(design: Design, form: str) -> None:
    if form == "json":
        document(json_text(_as_data(design)))
        return
    click.echo(f"{design.name}: {design.summary}\n")
    click.echo(f"{_about(design)}\n")
    if design.parameters:
        rows = [(p.name, p.default, p.expected, p.summary) for p in design.parameters]
        table(("parameter", "default", "expected", "meaning"), rows)
        click.echo()
    name = design.name
    run = f"; hopback demo {name}" if design.documented else ""
    click.echo(f"Next: hopback topology show {name}; hopback topology check {name}{run}")


def _about(design: Design) -> str:
    """The design's own words about itself: the docstring of the function that builds it."""
    from inspect import getdoc

    return getdoc(design.factory) or design.summary


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
