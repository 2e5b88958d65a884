"""The front door of a package: names that are loaded when they are first used.

A package that is imported for one of its names does not load the modules of the others. Its
`__init__` lists each name twice: for type checkers as an import below `TYPE_CHECKING` in the form
`from x import A as A`, and for the interpreter in the table given to `front_door`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def front_door(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    `homes` maps a module to the public names that it defines, separated by spaces.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(home_of)
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        # A submodule of the same name (`topology.check`) must not hide the function.
        value = vars(sys.modules[package])[name] = getattr(import_module(home), name)
        return value

    def names() -> list[str]:
        """Return the public names only: completion shows neither imports nor submodules."""
        dunders = [name for name in vars(sys.modules[package]) if name.startswith("__")]
        return sorted({*dunders, *home_of})

    return load, names
