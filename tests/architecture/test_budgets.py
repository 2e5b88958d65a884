"""Small functions, small files, names that say what they hold."""

from __future__ import annotations

import ast
import statistics

import pytest

from tests.architecture.source import Module, functions, library, test_modules

_ALL = (*library(), *test_modules())
_BANNED_NAMES = frozenset(
    {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
)
_MAX_FUNCTION_LINES = 50
_MAX_FILE_LINES = 500


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body, its docstring left out."""
    body = function.body
    has_docstring = ast.get_docstring(function, clean=False) is not None
    first = body[1].lineno if has_docstring and len(body) > 1 else body[0].lineno
    return 1 if has_docstring and len(body) == 1 else (function.end_lineno or 0) - first + 1


@pytest.mark.parametrize("module", _ALL, ids=lambda module: module.name)
def test_functions_and_files_keep_their_budget(module: Module) -> None:
    """No function over 50 lines, no file over 500."""
    long = {
        node.name: _lines(node) for node in functions(module) if _lines(node) > _MAX_FUNCTION_LINES
    }
    assert long == {}
    assert len(module.text.splitlines()) <= _MAX_FILE_LINES


def test_most_functions_are_a_few_lines() -> None:
    """Over the whole library: median at most 6 lines, nine of ten at most 25."""
    sizes = sorted(_lines(node) for module in library() for node in functions(module))
    assert statistics.median(sizes) <= 6
    assert sizes[int(len(sizes) * 0.9)] <= 25


@pytest.mark.parametrize("module", _ALL, ids=lambda module: module.name)
def test_modules_are_named_for_the_domain(module: Module) -> None:
    """No drawer for odds and ends."""
    assert set(module.name.split(".")) & _BANNED_NAMES == set()


def _called(tree: ast.AST) -> set[str]:
    """Names that are called: `sleep` of `asyncio.sleep(1)`, `print` of `print()`."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {
        func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls
    }


@pytest.mark.parametrize("module", library(), ids=lambda module: module.name)
def test_the_library_never_prints(module: Module) -> None:
    """Only the command speaks on stdout, and it does so through click."""
    assert "print" not in _called(module.tree) or module.name == "hopback.cli.printing"


@pytest.mark.parametrize(
    "module",
    [
        module
        for module in test_modules()
        if module.name.startswith(("tests.unit", "tests.properties"))
    ],
    ids=lambda module: module.name,
)
def test_unit_tests_neither_sleep_nor_mock(module: Module) -> None:
    """Time is an argument: no unit or property test sleeps, none replaces our own code.

    `asyncio.sleep(0)`, which only lets others run, is no sleep.
    """
    assert _sleeps(module.tree) == []
    assert not any(name.startswith("unittest.mock") for name in module.imports())


def _sleeps(tree: ast.AST) -> list[str]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    named = (
        call for call in calls if ast.unparse(call.func) in {"time.sleep", "asyncio.sleep", "sleep"}
    )
    return [ast.unparse(call) for call in named if [ast.unparse(arg) for arg in call.args] != ["0"]]


@pytest.mark.parametrize("module", test_modules(), ids=lambda module: module.name)
def test_every_test_says_what_it_shows(module: Module) -> None:
    """Each test has a docstring that is a sentence."""
    tests = [node for node in functions(module) if node.name.startswith("test_")]
    silent = [
        node.name
        for node in tests
        if not (ast.get_docstring(node) or "").rstrip().endswith((".", "!", "?"))
    ]
    assert silent == []
