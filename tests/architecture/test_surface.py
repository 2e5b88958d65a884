"""The public surface: complete and light to import."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from hopback import errors
from tests.architecture.source import functions, library

_FORBIDDEN = (
    "asyncio", "click", "email", "httpx", "hypothesis", "json", "logging", "msgspec", "pika", "pytest",
    "rich", "socket", "sqlalchemy", "sqlite3", "ssl", "subprocess", "tomli_w", "tomllib",
    "typing_extensions", "urllib.request", "uvloop", "hopback.broker", "hopback.cli", "hopback.wire",
)  # fmt: skip


_DOORS = (
    "hopback",
    "hopback.broker",
    "hopback.ops",
    "hopback.ops.http",
    "hopback.runtime",
    "hopback.testing",
    "hopback.topology",
)  # fmt: skip


def test_source_contains_no_todo() -> None:
    assert [module.name for module in library() if "TODO" in module.text] == []


def test_every_error_class_has_a_remedy() -> None:
    """A remedy is a sentence with a full stop."""
    classes = [getattr(errors, name) for name in errors.__all__]
    kinds = [kind for kind in classes if issubclass(kind, errors.HopbackError)]
    assert len(kinds) > 10
    for kind in kinds:
        assert "remedy" in vars(kind), kind
        assert kind.remedy.endswith("."), kind


def test_functions_of_the_command_take_no_json_objects() -> None:
    """Commands print values of the contract. No function takes a `dict[str, Any]`."""
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


def _modules_loaded_by(statement: str) -> set[str]:
    """Return the modules that one statement loads in a fresh interpreter."""
    program = (
        f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    return set(ran.stdout.split())


def test_import_hopback_loads_few_modules() -> None:
    """`import hopback` loads no web, SQL, broker or terminal library."""
    loaded = _modules_loaded_by("import hopback")
    assert "hopback" in loaded
    assert loaded & set(_FORBIDDEN) == set()
    # Most of them belong to Python's `typing`.
    assert len(loaded) <= 40


@pytest.mark.parametrize("door", _DOORS)
def test_front_door_exports_and_completes_its_names(door: str) -> None:
    package = importlib.import_module(door)
    names = package.__all__
    assert len(names) > 5
    for name in names:
        assert getattr(package, name) is not None
    assert [name for name in dir(package) if not name.startswith("__")] == sorted(names)
    star: dict[str, object] = {}
    exec(f"from {door} import *", star)
    assert set(names) <= set(star)
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(package, "no_such" + "_name")


def _type_checking_names(path: Path) -> set[str]:
    """Return the names that a front door re-exports for type checkers."""
    blocks = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    return {
        alias.asname
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }


@pytest.mark.parametrize("door", _DOORS)
def test_front_door_lists_the_same_names_for_type_checkers(door: str) -> None:
    package = importlib.import_module(door)
    assert package.__file__ is not None
    assert _type_checking_names(Path(package.__file__)) == set(package.__all__)


def test_completion_of_context_shows_no_internal_names() -> None:
    from hopback import Context

    shown = {name for name in dir(Context) if not name.startswith("_")}
    assert shown == {
        "attempt", "correlation_id", "delivery", "has_replied", "headers", "is_last_attempt", "message_id",
        "now", "plan", "publish", "publish_sync", "queue", "reply", "reply_sync", "request", "routing_key",
        "send", "wants_reply",
    }  # fmt: skip


def test_hopback_exports_no_topology_and_no_broker_internals() -> None:
    import hopback

    inner = {"Broker", "EmbeddedBroker", "Plan", "Queue", "Topology", "check", "front_door"}
    assert inner & set(dir(hopback)) == set()
