"""Finding the application that `module:attribute` names, and saying clearly what is not there."""

from __future__ import annotations

import sys
import traceback
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hopback.cli.exits import CommandFailed, Exit
from hopback.errors import HopbackError
from hopback.extras import needs

if TYPE_CHECKING:
    from types import ModuleType

    from hopback.runtime.app import App

__all__ = ["load_app"]


def load_app(target: str) -> App:
    """The application; the current directory is searched first. CommandFailed says what is missing."""
    name, _, attribute = target.partition(":")
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        raise CommandFailed(
            f"expected module:attribute, for example shop:app, got {target!r}",
            do="Name a Python module, not a file: shop:app rather than shop.py:app.",
            code=Exit.USAGE,
        )
    return _application(_imported(name), attribute or "app")


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    ours = name.startswith("hopback.")  # a documented system; what it lacks comes with its extra
    try:
        with needs("systems", name) if ours else nullcontext():
            return import_module(name)
    except HopbackError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CommandFailed(
                f"there is no module {error.name!r} in {here} or on Python's path",
                do="Run it in the folder of the module, or install the package.",
                code=Exit.NOT_FOUND,
            ) from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> CommandFailed:
    """The module is there but cannot be imported: say where it failed, as its author needs it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if "importlib" not in one.filename]
    where = f"{ours[-1].filename}, line {ours[-1].lineno}: " if ours else ""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}: "
    return CommandFailed(
        f"{name} cannot be imported: {where}{type(error).__name__}: {error}",
        do="Mend the module; `python -m` it to see the whole traceback.",
    )


def _application(module: ModuleType, attribute: str) -> App:
    from hopback.runtime.app import App

    found = getattr(module, attribute, None)
    if isinstance(found, App):
        return found
    there = [name for name, value in vars(module).items() if isinstance(value, App)]
    got = "nothing" if found is None else type(found).__name__
    known = f"It has: {', '.join(there)}." if there else "It has no application at all."
    raise CommandFailed(
        f"expected an App as {attribute!r} in {module.__name__}, got {got}",
        do=f"{known} Say `hopback run {module.__name__}:NAME`.",
        code=Exit.NOT_FOUND,
    )
