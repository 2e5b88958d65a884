"""The front door of a package: names that are loaded when they are first asked for.

A package that is imported for one of its names does not load the homes of the others. A name that was
called something else in an earlier version is still found, with a warning.
"""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.renamed import old_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["front_door"]

_NONE: Mapping[str, str] = MappingProxyType({})


def front_door(
    package: str, homes: Mapping[str, tuple[str, ...]], renamed: Mapping[str, str] = _NONE
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names live in these modules."""
    home_of = {name: home for home, names in homes.items() for name in names}
    old = old_names(package, renamed)

    def load(name: str) -> object:
        """Load a public name from its home on first use, and keep it."""
        home = home_of.get(name)
        if home is None:
            return old(name)
        from importlib import import_module

        # A submodule of the same name (`topology.check`) must not hide the function.
        value = vars(sys.modules[package])[name] = getattr(import_module(home), name)
        return value

    def names() -> list[str]:
        """Every public name, loaded or not."""
        return sorted({*vars(sys.modules[package]), *home_of})

    return load, names
