"""Rules for module names, printing, sleeping and mocks."""

from __future__ import annotations

import ast

from tests.architecture.source import Module, library, test_modules

_BANNED_NAMES = frozenset(
    {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
)


def _all() -> tuple[Module, ...]:
    return (*library(), *test_modules())


def test_module_names_contain_no_generic_words() -> None:
    assert [module.name for module in _all() if set(module.name.split(".")) & _BANNED_NAMES] == []


def _call_names(module: Module) -> set[str]:
    """Return the names of called functions: `sleep` for `asyncio.sleep(1)`, `print` for `print()`."""
    calls = (node.func for node in module.nodes if isinstance(node, ast.Call))
    return {
        func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls
    }


def test_only_terminal_module_calls_print() -> None:
    """The command writes to stdout through click and rich."""
    printing = [module.name for module in library() if "print" in _call_names(module)]
    assert printing == ["hopback.cli.terminal"]


def _quick_tests() -> list[Module]:
    return [m for m in test_modules() if m.name.startswith(("tests.unit", "tests.properties"))]


def test_unit_tests_do_not_sleep() -> None:
    """`asyncio.sleep(0)` only yields control and is allowed. In virtual time every sleep is
    allowed.
    """
    real = [
        module
        for module in _quick_tests()
        if not _uses_virtual_time(module) and module.name not in _CALLED_IN_VIRTUAL_TIME
    ]
    assert {module.name: found for module in real if (found := _sleeps(module))} == {}


# Part of an application under test. All tests that use it run in virtual time.
_CALLED_IN_VIRTUAL_TIME = frozenset({"tests.unit.runtime.slow"})
_VIRTUAL = frozenset({"VirtualTimeLoop", "in_virtual_time", "run_virtual"})


def _uses_virtual_time(module: Module) -> bool:
    """Return whether the module uses the virtual-time loop. An import alone does not count."""
    return any(isinstance(node, ast.Name) and node.id in _VIRTUAL for node in module.nodes)


def test_sleep_is_found_if_virtual_time_is_imported_but_not_used() -> None:
    text = "from hopback.testing import in_virtual_time\nvirtual_host = '/'\ntime.sleep(1)"
    sample = Module.parse("tests.unit.sample", library()[0].path, text)
    assert not _uses_virtual_time(sample)
    assert _sleeps(sample) == ["time.sleep(1)"]


def test_unit_tests_use_no_mocks() -> None:
    mocking = [m.name for m in _quick_tests() if any("unittest.mock" in i for i in m.imports())]
    assert mocking == []


def _sleeps(module: Module) -> list[str]:
    calls = (node for node in module.nodes if isinstance(node, ast.Call))
    named = (
        call for call in calls if ast.unparse(call.func) in {"time.sleep", "asyncio.sleep", "sleep"}
    )
    return [ast.unparse(call) for call in named if [ast.unparse(arg) for arg in call.args] != ["0"]]
