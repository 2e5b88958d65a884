"""The command `hopback init`, which writes a small service with a test, a Containerfile and a
compose file.
"""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.text import one_line as safe


@click.command(short_help="Write a small service with a test and container files.")
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Write a small service with a test, a Containerfile and a compose file to DIR.

    The default is the current directory. Existing files are never overwritten.
    """
    templates = {
        each.name.removesuffix(".template"): each.read_bytes()
        for each in files("hopback.cli").joinpath("templates").iterdir()
        if each.name.endswith(".template")
    }
    existing = [name for name in sorted(templates) if (folder / name).exists()]
    if existing:
        raise CommandFailed(
            f"{folder} already contains {', '.join(existing)}",
            do="Choose another directory, or move these files. No file was written.",
            code=Exit.CONFLICT,
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in sorted(templates.items()):
            with (folder / name).open("xb") as file:
                file.write(content)
            click.echo(safe(f"wrote {folder / name}"))
    except OSError as error:
        raise CommandFailed(
            f"cannot write to {folder}: {error.strerror}", do="Choose another directory."
        ) from error
    click.echo("Next:")
    if folder != Path():
        click.echo(safe(f"cd {shlex.quote(str(folder))}"))
    click.echo("hopback run shop:app --broker embedded    # then, in another terminal:")
    click.echo("hopback publish orders '{\"id\": 7}'")
    click.echo("python -m pytest    # after pip install pytest")
