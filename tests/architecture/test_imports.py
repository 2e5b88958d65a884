"""Imports go downwards only, and the pure parts stay pure."""

from __future__ import annotations

import ast
import sys

import pytest

from tests.architecture.layers import IMPURE, LAYERS, LIBRARIES, entry_for, within
from tests.architecture.source import Module, library

_MODULES = library()
_NAMES = {module.name for module in _MODULES}
_PURE = ("hopback.topology", "hopback.policy", "hopback.patterns", "hopback.headers")


def _target(name: str) -> str:
    """The module an imported dotted name lies in: `hopback.errors.Problem` is `hopback.errors`."""
    while name not in _NAMES and "." in name:
        name = name.rpartition(".")[0]
    return name


def _allowed(module: str, imported: str) -> bool:
    own = entry_for(module, LAYERS)
    target = entry_for(imported, LAYERS)
    return target == own or any(target == entry_for(prefix, LAYERS) for prefix in LAYERS[own])


def _forbidden(module: Module) -> list[str]:
    """Imports of ours that the table does not allow; the bare package holds only the version."""
    ours = (name for name in module.imports() if within(name, "hopback"))
    targets = {_target(name) for name in ours if name != "hopback.__version__"}
    return sorted(target for target in targets if not _allowed(module.name, target))


@pytest.mark.parametrize("module", _MODULES, ids=lambda module: module.name)
def test_a_module_imports_only_what_lies_below_it(module: Module) -> None:
    """Every import of ours, also one inside a function, is allowed by the table of layers."""
    assert _forbidden(module) == []


@pytest.mark.parametrize("module", _MODULES, ids=lambda module: module.name)
def test_a_module_uses_only_the_libraries_of_its_layer(module: Module) -> None:
    """A third-party library is imported only where the table says so."""
    used = {name.partition(".")[0] for name in module.imports()}
    foreign = used - sys.stdlib_module_names - {"hopback", "_typeshed"}
    permitted = LIBRARIES[entry_for(module.name, LIBRARIES)]
    assert foreign <= permitted


@pytest.mark.parametrize(
    "module",
    [module for module in _MODULES if any(within(module.name, pure) for pure in _PURE)],
    ids=lambda module: module.name,
)
def test_the_pure_parts_know_no_io_no_clock_and_no_chance(module: Module) -> None:
    """Neither the modules that do such things are imported, nor is a file opened or a date read."""
    used = {name.partition(".")[0] for name in module.imports()}
    assert used & IMPURE == set()
    names = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    assert names & {"open", "print", "input"} == set()
    assert attributes & {"now", "utcnow", "today"} == set()


def _sample(name: str, text: str) -> Module:
    return Module(name, _MODULES[0].path.with_name("sample.py"), text, ast.parse(text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hopback.policy.decide", "def f():\n    from hopback.broker.port import Broker"),
        ("hopback.topology.check", "from hopback.policy import decision"),
        ("hopback.topology.check", "from ..policy import decision"),
        ("hopback.wire.frames", "from hopback import topology"),
        ("hopback.broker.simulator.core", "import hopback.broker.rabbitmq"),
        ("hopback.broker.apply", "from hopback.wire import frames"),
        ("hopback.errors", "from hopback.fields import Headers"),
    ],
)
def test_the_rule_itself_sees_an_upward_import(name: str, text: str) -> None:
    """The table would catch each of these; a rule that allows everything would not."""
    assert _forbidden(_sample(name, text)) != []
