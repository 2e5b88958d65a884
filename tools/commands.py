"""Print all commands with their arguments, options, values and defaults: `.venv/bin/python
tools/commands.py`.

`--since COMMIT` compares them with another commit. It prints the syntax that is not accepted any
more, and exits with status 1 if there is any. Changed defaults are printed as well. `--all` also
prints additions.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
ANY = " VALUE"
DEFAULT = " is by default "


def promises(command: click.Command, path: str = "hopback") -> Iterator[str]:
    """Yield the syntax that scripts may rely on, one line each. Help texts are not included."""
    yield path
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    for number, argument in enumerate(arguments, 1):
        yield f"{path} ARGUMENT{number}"
        if not argument.required:
            yield f"{path} [ARGUMENT{number}]"
        if argument.nargs == -1:
            yield f"{path} ARGUMENT{number}..."
        yield from _values(argument, f"{path} ARGUMENT{number}")
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        for name in (*option.opts, *option.secondary_opts):
            yield f"{path} {name}"
            if not option.is_flag:
                yield from _values(option, f"{path} {name}")
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from promises(found, f"{path} {name}")


def _values(parameter: click.Parameter, named: str) -> Iterator[str]:
    if isinstance(parameter.type, click.Choice):
        yield from (f"{named} {choice}" for choice in parameter.type.choices)
    else:
        yield f"{named}{ANY}"
    if isinstance(parameter.envvar, str):
        yield f"{named} by {parameter.envvar}"
    if isinstance(parameter.default, str | int | float) and parameter.default != "":
        yield f"{named}{DEFAULT}{parameter.default}"


def lost(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """Return the syntax that is not accepted any more. If an option accepts any value now, its old
    values are still accepted.
    """
    known = set(now)
    return [
        line
        for line in before
        if line not in known
        and DEFAULT not in line
        and f"{line.rpartition(' ')[0]}{ANY}" not in known
    ]


def promises_at(commit: str) -> list[str]:
    """Return the syntax of another commit. Its source is run in this environment."""
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "x", "-C", folder], input=packed, check=True)
        done = subprocess.run(
            [sys.executable, str(Path(__file__))],
            env={**os.environ, "PYTHONPATH": f"{folder}/src"},
            check=True,
            capture_output=True,
            text=True,
        )
    return done.stdout.splitlines()


def main() -> int:
    """Print the syntax or its changes."""
    from hopback.cli.app import root

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", metavar="COMMIT", help="compare with this commit")
    parser.add_argument("--all", action="store_true", help="with --since: also print additions")
    options = parser.parse_args()
    now = list(promises(root))
    if options.since is None:
        print(*now, sep="\n")
        return 0
    before = promises_at(options.since)
    gone = lost(before, now)
    new = [line for line in now if line not in set(before)]
    for line in gone:
        print(f"lost: {line}")
    for line in new:
        if DEFAULT in line and line.partition(DEFAULT)[0] in before:
            print(f"changed: {line}")
        elif options.all:
            print(f"new: {line}")
    print(f"{len(before)} at {options.since}, {len(now)} now: {len(gone)} lost, {len(new)} new")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
