"""Rules for module names, printing, sleeping and mocks."""

from __future__ import annotations

import ast

from tests.architecture.source import Module, library, test_modules

_BANNED_NAMES = frozenset(
    {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
)


def _all() -> tuple[Module, ...]:
    return (*library(), *test_modules())


def test_modules_are_named_for_the_domain() -> None:
    """No drawer for odds and ends."""
    assert [module.name for module in _all() if set(module.name.split(".")) & _BANNED_NAMES] == []


def _called(module: Module) -> set[str]:
    """Names that are called: `sleep` of `asyncio.sleep(1)`, `print` of `print()`."""
    calls = (node.func for node in module.nodes if isinstance(node, ast.Call))
    return {
        func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls
    }


def test_the_library_never_prints() -> None:
    """Only the command speaks on stdout, and it does so through click and rich."""
    printing = [module.name for module in library() if "print" in _called(module)]
    assert printing == ["hopback.cli.terminal"]


def _quick_tests() -> list[Module]:
    return [m for m in test_modules() if m.name.startswith(("tests.unit", "tests.properties"))]


def test_unit_tests_do_not_sleep() -> None:
    """Time is an argument; `asyncio.sleep(0)`, which only lets others run, is no sleep.

    In virtual time, on the loop of the embedded broker, a sleep takes none.
    """
    real = [
        module
        for module in _quick_tests()
        if not _uses_virtual_time(module) and module.name not in _CALLED_IN_VIRTUAL_TIME
    ]
    assert {module.name: found for module in real if (found := _sleeps(module))} == {}


# A part of an application under test; every test that uses it runs in virtual time.
_CALLED_IN_VIRTUAL_TIME = frozenset({"tests.unit.runtime.slow"})
_VIRTUAL = frozenset({"VirtualTimeLoop", "in_virtual_time", "run_virtual"})


def _uses_virtual_time(module: Module) -> bool:
    """Whether it runs something on the loop whose time is virtual; that it says so is not enough."""
    return any(isinstance(node, ast.Name) and node.id in _VIRTUAL for node in module.nodes)


def test_the_rule_itself_is_not_taken_in_by_the_word() -> None:
    """A module that names a virtual host, or imports the loop and does not use it, sleeps for real."""
    text = "from hopback.testing import in_virtual_time\nvirtual_host = '/'\ntime.sleep(1)"
    sample = Module.parse("tests.unit.sample", library()[0].path, text)
    assert not _uses_virtual_time(sample)
    assert _sleeps(sample) == ["time.sleep(1)"]


def test_unit_tests_replace_nothing_of_ours() -> None:
    """No mocks."""
    mocking = [m.name for m in _quick_tests() if any("unittest.mock" in i for i in m.imports())]
    assert mocking == []


def _sleeps(module: Module) -> list[str]:
    calls = (node for node in module.nodes if isinstance(node, ast.Call))
    named = (
        call for call in calls if ast.unparse(call.func) in {"time.sleep", "asyncio.sleep", "sleep"}
    )
    return [ast.unparse(call) for call in named if [ast.unparse(arg) for arg in call.args] != ["0"]]
