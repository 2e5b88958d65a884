"""The public surface: complete, sorted and light to import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from hopback import errors
from tests.architecture.source import Module, functions, library

_FORBIDDEN = (
    "asyncio", "click", "email", "httpx", "hypothesis", "json", "logging", "msgspec", "pika", "pytest",
    "rich", "socket", "sqlalchemy", "sqlite3", "ssl", "subprocess", "tomli_w", "tomllib",
    "typing_extensions", "urllib.request", "uvloop", "hopback.broker", "hopback.cli", "hopback.wire",
)  # fmt: skip


def _declared(module: Module) -> list[str] | None:
    """The names in `__all__`, or None where it is missing."""
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            assert isinstance(value, ast.List | ast.Tuple)
            return [ast.literal_eval(item) for item in value.elts]
    return None


def _flaws(module: Module) -> list[str]:
    declared = _declared(module)
    if declared is None:
        return ["no __all__"]
    return ["not sorted"] if declared != sorted(declared, key=_order) else []


def test_front_doors_have_a_sorted_all() -> None:
    """Inner modules need no `__all__`."""
    doors = [module for module in library() if module.path.name == "__init__.py"]
    assert doors
    assert {module.name: found for module in doors if (found := _flaws(module))} == {}


def _order(name: str) -> tuple[int, list[int | str]]:
    """Ruff's order: constants, classes, the rest; numbers inside a name count as numbers."""
    kind = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    return kind, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def test_nothing_is_left_to_do_later() -> None:
    """No module says TODO."""
    assert [module.name for module in library() if "TODO" in module.text] == []


def test_every_error_says_what_to_do() -> None:
    """Each error class carries a remedy of its own: one sentence with its full stop."""
    classes = [getattr(errors, name) for name in errors.__all__]
    kinds = [kind for kind in classes if issubclass(kind, errors.HopbackError)]
    assert len(kinds) > 10
    for kind in kinds:
        assert "remedy" in vars(kind), kind
        assert kind.remedy.endswith("."), kind


def test_the_command_passes_values_on_and_no_json_objects() -> None:
    """No function of the command takes a `dict[str, Any]`: what it prints are values of the contract."""
    commands = [module for module in library() if module.name.startswith("hopback.cli")]
    assert commands
    taken = {
        f"{module.name}.{node.name}({argument.arg})"
        for module in commands
        for node in functions(module)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if argument.annotation is not None
        and "dict[str, Any]" in ast.unparse(argument.annotation).replace("typing.", "")
    }
    assert taken == set()


def _loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after one statement."""
    program = (
        f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    return set(ran.stdout.split())


def test_importing_hopback_is_light() -> None:
    """`import hopback` loads no web, SQL, broker or terminal library, and few modules at all."""
    loaded = _loaded_by("import hopback")
    assert "hopback" in loaded
    assert loaded & set(_FORBIDDEN) == set()
    # Python's own `typing` and what it needs are most of them.
    assert len(loaded) <= 40


def test_every_name_of_the_front_door_opens() -> None:
    """Each name of the lazy front door can be had, and `dir` shows them all."""
    import hopback

    for name in hopback.__all__:
        assert getattr(hopback, name) is not None
    assert set(hopback.__all__) <= set(dir(hopback))
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(hopback, "no_such" + "_name")
