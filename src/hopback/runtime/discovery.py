"""Finds the modules of a package that declare handlers, so that nobody has to import them by hand."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hopback.runtime.app import App, Router

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["discover", "left_out"]

_DECLARES = re.compile(r"\.(?:handler|batch|push|middleware)\b|\bRouter\(")
"""What a module says that declares something; others are not imported: they may be scripts."""


def discover(package: ModuleType) -> tuple[ModuleType, ...]:
    """Import the modules below a package that declare handlers; a plain module has none below it."""
    return tuple(import_module(name) for name in _declaring(package))


def left_out(modules: tuple[ModuleType, ...]) -> tuple[str, ...]:
    """Where routers stand that no application has included: their handlers do not run."""
    return tuple(
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Router) and not isinstance(value, App) and not value.is_included
    )


def _declaring(package: ModuleType) -> Iterator[str]:
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
            yield from _declaring(import_module(found.name))
