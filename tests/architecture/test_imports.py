"""Imports follow the layers, and pure parts do no I/O."""

from __future__ import annotations

import ast
import sys
from functools import cache
from graphlib import TopologicalSorter

import pytest

from tests.architecture.layers import IMPURE, LAYERS, LIBRARIES, OPS_LEVELS, entry_for, within
from tests.architecture.source import Module, library

_PURE = ("hopback.topology", "hopback.policy", "hopback.designs", "hopback.headers", "hopback.text")


@cache
def _names() -> frozenset[str]:
    return frozenset(module.name for module in library())


def _target(name: str) -> str:
    """Return the module that contains a dotted name: `hopback.errors` for `hopback.errors.Problem`."""
    while name not in _names() and "." in name:
        name = name.rpartition(".")[0]
    return name


def _is_allowed(module: str, imported: str) -> bool:
    own = entry_for(module, LAYERS)
    target = entry_for(imported, LAYERS)
    return target == own or any(target == entry_for(prefix, LAYERS) for prefix in LAYERS[own])


def _forbidden(module: Module) -> list[str]:
    """Return imports of Hopback modules that the layers do not allow. The version is always
    allowed.
    """
    ours = (name for name in module.imports() if within(name, "hopback"))
    targets = {_target(name) for name in ours if name != "hopback.__version__"}
    # The front door of a package may import all modules below it.
    inside = {each for each in targets if module.is_package and within(each, module.name)}
    return sorted(each for each in targets - inside if not _is_allowed(module.name, each))


def _foreign(module: Module) -> set[str]:
    """Return third-party libraries that are not listed for the module."""
    used = {name.partition(".")[0] for name in module.imports()}
    permitted = LIBRARIES[entry_for(module.name, LIBRARIES)]
    return used - sys.stdlib_module_names - {"hopback", "_typeshed"} - permitted


def _impurities(module: Module) -> set[str]:
    """Return the module's uses of I/O, clocks and randomness."""
    names = {node.id for node in module.nodes if isinstance(node, ast.Name)}
    calls = (node.func for node in module.nodes if isinstance(node, ast.Call))
    attributes = {func.attr for func in calls if isinstance(func, ast.Attribute)}
    used = {name.partition(".")[0] for name in module.imports()}
    doing = (names & {"open", "print", "input"}) | (attributes & {"now", "utcnow", "today"})
    return (used & IMPURE) | doing


def test_modules_import_their_layer_and_lower_ones() -> None:
    """Imports inside functions count as well."""
    assert {module.name: found for module in library() if (found := _forbidden(module))} == {}


def _runtime_imports(module: Module) -> set[str]:
    """Return the Hopback modules that a module imports at run time, at its top or in a function."""
    tree = ast.parse(module.text)
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ]
    loading = Module(module.name, module.path, module.text, tree, tuple(ast.walk(tree)))
    ours = {_target(name) for name in loading.imports() if within(name, "hopback")}
    return ours - {module.name}


def test_modules_import_each_other_without_cycles() -> None:
    graph = {module.name: _runtime_imports(module) for module in library()}
    TopologicalSorter(graph).prepare()  # CycleError names the modules


def _level(name: str) -> int:
    return OPS_LEVELS[entry_for(name, OPS_LEVELS)]


def test_operator_modules_import_their_level_and_lower_ones() -> None:
    ops = [module for module in library() if within(module.name, "hopback.ops")]
    upward = {
        module.name: found
        for module in ops
        if not module.is_package
        and (
            found := {
                name
                for name in _runtime_imports(module)
                if within(name, "hopback.ops") and _level(name) > _level(module.name)
            }
        )
    }
    assert upward == {}


def _inner(module: Module) -> set[str]:
    """Return a system's imports that are not front doors. The demo may import all modules of the
    command.
    """
    own = entry_for(module.name, LAYERS)
    parts = ("hopback.systems", "hopback.cli")[: 1 + (own == "hopback.systems.demo")]
    homes = {name.rpartition(".")[0] for name in module.imports() if within(name, "hopback")}
    return {
        home for home in homes - set(LAYERS[own]) if not any(within(home, part) for part in parts)
    }


def test_systems_import_front_doors_only() -> None:
    systems = [module for module in library() if within(module.name, "hopback.systems")]
    assert len(systems) > 50
    assert {module.name: found for module in systems if (found := _inner(module))} == {}


def test_import_of_inner_module_by_a_system_is_found() -> None:
    text = "from hopback.ops.http.auth import Jwks\nfrom hopback.ops.http import Role"
    assert _inner(_sample("hopback.systems.raffle.api", text)) == {"hopback.ops.http.auth"}


def test_modules_import_only_the_libraries_listed_for_them() -> None:
    assert {module.name: found for module in library() if (found := _foreign(module))} == {}


def test_pure_parts_do_no_io_and_read_no_clock() -> None:
    pure = [module for module in library() if any(within(module.name, part) for part in _PURE)]
    assert len(pure) > 20
    assert {module.name: found for module in pure if (found := _impurities(module))} == {}


def _sample(name: str, text: str) -> Module:
    return Module.parse(name, library()[0].path.with_name("sample.py"), text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hopback.policy.decide", "def f():\n    from hopback.broker.port import Broker"),
        ("hopback.topology.check", "from hopback.policy import decision"),
        ("hopback.topology.check", "from ..policy import decision"),
        ("hopback.wire.frames", "from hopback import topology"),
        ("hopback.broker.embedded.core", "import hopback.broker.rabbitmq"),
        ("hopback.broker.apply", "from hopback.wire import frames"),
        ("hopback.errors", "from hopback.fields import Headers"),
    ],
)
def test_upward_import_is_found(name: str, text: str) -> None:
    assert _forbidden(_sample(name, text)) != []


def test_io_and_clock_in_a_pure_part_are_found() -> None:
    text = "import time, asyncio\nfrom datetime import datetime\ndatetime.now(); open('x')"
    assert _impurities(_sample("hopback.policy.decide", text)) == {"time", "asyncio", "now", "open"}


def test_unlisted_library_is_found() -> None:
    assert _foreign(_sample("hopback.policy.decide", "import click")) == {"click"}
    assert _foreign(_sample("hopback.cli.app", "import click, pika")) == {"pika"}
