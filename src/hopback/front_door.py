"""Lazy loading of the public names of a package.

Importing a package does not import its modules until a name is used. Each public name is listed
twice in `__init__.py`: as `from x import A as A` under `TYPE_CHECKING`, and in the table passed to
`front_door`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def front_door(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` functions for a package.

    Args:
        package: Name of the package.
        homes: Maps each module to its public names, separated by spaces.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(home_of)
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        # Cache the value in the package so that a submodule with the same name (`topology.check`)
        # does not shadow it.
        value = vars(sys.modules[package])[name] = getattr(import_module(home), name)
        return value

    def names() -> list[str]:
        """Return only the public names, so that completion does not list imports and submodules."""
        dunders = [name for name in vars(sys.modules[package]) if name.startswith("__")]
        return sorted({*dunders, *home_of})

    return load, names
