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


def _defined(module: Module) -> set[str]:
    """Public classes, functions and constants that the module itself makes at its top level."""
    names: set[str] = set()
    for node in module.tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if _is_row(node):
                pass
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(
                value=ast.Call(func=ast.Name(id="TypeVar" | "TypeVarTuple" | "ParamSpec"))
            ):
                pass
            case ast.Assign(targets=targets):
                found = (inner for target in targets for inner in ast.walk(target))
                names.update(inner.id for inner in found if isinstance(inner, ast.Name))
    return {name for name in names if not name.startswith("_")}


def _is_row(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A row of the conformance suite is known by its title, not by the name of its function."""
    calls = (mark.func for mark in function.decorator_list if isinstance(mark, ast.Call))
    return any(isinstance(func, ast.Name) and func.id == "row" for func in calls)


def _bound(module: Module) -> set[str]:
    """All names at the top level, imported ones too."""
    imported = {
        (alias.asname or alias.name)
        for node in module.nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return _defined(module) | imported


def _flaws(module: Module) -> list[str]:
    """What is wrong with the module's `__all__`."""
    declared = _declared(module)
    if declared is None:
        return ["no __all__"]
    # What a front door loads lazily it imports for the type checker.
    lazy = "__getattr__" in {getattr(node, "name", "") for node in module.tree.body}
    unknown = set(declared) - {"__version__"} - _bound(module) if not lazy else set()
    return [
        *(["not sorted"] if declared != sorted(declared, key=_order) else []),
        *(f"lacks {name}" for name in sorted(_defined(module) - set(declared))),
        *(f"unknown {name}" for name in sorted(unknown)),
    ]


def test_all_is_complete_and_sorted() -> None:
    """`__all__` exists, is sorted, names everything public that is made here, and nothing unknown."""
    assert {module.name: found for module in library() if (found := _flaws(module))} == {}


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
