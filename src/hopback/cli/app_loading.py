"""Import the user's application. If this fails, report the line that needs to be corrected."""

from __future__ import annotations

import os
import pkgutil
import re
import sys
import traceback
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit, exit_of
from hopback.errors import HopbackError, MissingExtra
from hopback.extras import needs
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from hopback.runtime.app import App


_HOPBACK = str(Path(__file__).resolve().parents[1]) + os.sep
"""The folder of Hopback's modules. Error messages don't refer to lines in it."""


_DECLARES = re.compile(
    r"\.(?:handler|batch|push|middleware)\b|@\w+\.(?:every|on_error)\b|\bRouter\("
)
"""Matches modules that declare handlers or periodic messages. Other modules are not imported,
because they may be scripts.
"""


def load_app(target: str) -> App:
    """Import an application. The current directory is searched before Python's path."""
    from hopback.runtime.app import App

    module, attribute = load_module(target)
    attribute = attribute or "app"
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        apps = [name for name, value in vars(module).items() if isinstance(value, App)]
        got = "nothing" if app is None else type(app).__name__
        known = f"It has: {', '.join(apps)}." if apps else "It contains no application."
        raise CommandFailed(
            f"expected an App as {attribute!r} in {module.__name__}, got {got}",
            do=f"{known} Name it as {module.__name__}:NAME.",
            code=Exit.NOT_FOUND,
        )
    try:
        found = discover(module)
    except Exception as error:
        raise _import_failure(module.__name__, error) from error
    for router in left_out((module, *found)):
        click.echo(
            safe(f"{router} is included in no application: its handlers do not run."), err=True
        )
    return app


def load_module(target: str) -> tuple[ModuleType, str]:
    """Import the module of MODULE:ATTRIBUTE. Returns the module and the name of the attribute,
    which may be empty.
    """
    name, _, attribute = target.partition(":")
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        raise CommandFailed(
            f"expected module:attribute, for example shop:app, got {target!r}",
            do="Name a Python module, not a file: shop:app rather than shop.py:app.",
            code=Exit.USAGE,
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    # a documented system, whose libraries are installed by an extra
    ours = name.startswith("hopback.")
    try:
        with needs("systems", name) if ours else nullcontext():
            return import_module(name), attribute
    except MissingExtra:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CommandFailed(
                f"there is no module {error.name!r} in {here} or on Python's path",
                do="Run it in the folder of the module, or install the package.",
                code=Exit.NOT_FOUND,
            ) from error
        raise _import_failure(name, error) from error
    except Exception as error:
        raise _import_failure(name, error) from error


def _import_failure(name: str, error: Exception) -> CommandFailed:
    """Return the error for a module that cannot be imported. It contains the line that the author
    has to correct.
    """
    frames = traceback.extract_tb(error.__traceback__)
    found = [one for one in frames if "importlib" not in one.filename]
    if not name.startswith("hopback."):
        # The error may be raised deep inside Hopback. Report the line that has called it.
        found = [one for one in found if not one.filename.startswith(_HOPBACK)]
    where = f"{found[-1].filename}, line {found[-1].lineno}: " if found else ""
    if isinstance(error, SyntaxError):
        where, error = f"{error.filename}, line {error.lineno}: ", SyntaxError(error.msg)
    if isinstance(error, HopbackError):
        text = f"{name} cannot be imported: {where}{error}"
        return CommandFailed(text, do=error.remedy, code=exit_of(error))
    return CommandFailed(
        f"{name} cannot be imported: {where}{type(error).__name__}: {error}",
        do=f"Correct the module. `python -m {name}` shows the whole traceback.",
    )


def discover(package: ModuleType) -> tuple[ModuleType, ...]:
    """Import all modules of a package that declare handlers or periodic messages."""
    return tuple(import_module(name) for name in _find_declaring_modules(package))


def left_out(modules: tuple[ModuleType, ...]) -> tuple[str, ...]:
    """Return the names of routers that are not included in an application. Their handlers do not
    run.
    """
    from hopback.runtime.app import App, Router

    return tuple(
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Router) and not isinstance(value, App) and not value.is_included
    )


def _find_declaring_modules(package: ModuleType) -> Iterator[str]:
    folders = getattr(package, "__path__", ())
    for found in pkgutil.iter_modules(folders, f"{package.__name__}."):
        last = found.name.rpartition(".")[2]
        if last.startswith(("_", "test")) or last in ("conftest", "tests"):
            continue
        spec = find_spec(found.name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        if _DECLARES.search(Path(spec.origin).read_text(encoding="utf-8", errors="replace")):
            yield found.name
        if found.ispkg and spec.submodule_search_locations is not None:
            yield from _find_declaring_modules(import_module(found.name))
