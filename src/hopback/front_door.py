"""Load the public names of a package lazily.

Importing a package does not import its modules until a name is used. Each public name is listed
twice in `__init__.py`. One is `from x import A as A` under `TYPE_CHECKING`, the other is in the
table that is passed to `front_door`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PACKAGES = (
    "hopback",
    "hopback.runtime",
    "hopback.testing",
    "hopback.store",
    "hopback.topology",
    "hopback.broker",
    "hopback.errors",
    "hopback.designs",
    "hopback.rehearse",
    "hopback.ops",
)
"""The packages with public names. They are searched for a name in this order."""


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
            # For `from hopback import X`, Python would replace the text of an AttributeError.
            is_import = sys._getframe(1).f_code.co_name == _IMPORTING  # noqa: SLF001
            raise _error_for(package, name, is_import=is_import)
        from importlib import import_module

        # Cache the value in the package so that a submodule with the same name (`topology.check`)
        # does not shadow it.
        value = vars(sys.modules[package])[name] = getattr(import_module(home), name)
        return value

    def names() -> list[str]:
        """Return only the public names. Completion then does not show imports and submodules."""
        dunders = [name for name in vars(sys.modules[package]) if name.startswith("__")]
        return sorted({*dunders, *home_of})

    return load, names


_IMPORTING = "_handle_fromlist"
"""The function in importlib that resolves the names of a `from` import."""


def _error_for(package: str, name: str, *, is_import: bool) -> AttributeError | ImportError:
    from importlib.util import find_spec

    text = f"module {package!r} has no attribute {name!r}"
    if name.startswith("_") or find_spec(f"{package}.{name}") is not None:
        return AttributeError(text)
    other = find_package(name)
    if other is None:
        return AttributeError(text)
    hint = f"it is in {other}: `from {other} import {name}`"
    if is_import:
        return ImportError(f"cannot import name {name!r} from {package!r}: {hint}")
    return AttributeError(f"{text}: {hint}")


def find_package(name: str) -> str | None:
    """Return the first package that exports a name.

    This reads the source files and does not import them, because a package may need a library that
    is not installed.
    """
    import re
    from importlib.util import find_spec
    from pathlib import Path

    word = re.escape(name)
    exported = re.compile(rf'\b{word} as {word}\b|^    "{word}",$', re.MULTILINE)
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            continue
        try:
            source = Path(spec.origin).read_text(encoding="utf-8")
        except OSError:
            continue
        if exported.search(source):
            return package
    return None
