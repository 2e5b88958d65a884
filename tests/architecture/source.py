"""Parsed source code for the architecture tests. The modules are not imported."""

from __future__ import annotations

import ast
import gc
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ROOT", "Module", "functions", "library", "test_modules"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    path: Path
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]

    @classmethod
    def parse(cls, name: str, path: Path, text: str) -> Module:
        """Parse the text and collect all nodes once."""
        tree = ast.parse(text, filename=str(path))
        return cls(name, path, text, tree, tuple(ast.walk(tree)))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def imports(self) -> set[str]:
        """Return the full dotted names of all imported modules, including imports inside functions."""
        return {name for node in self.nodes for name in self._imported_names(node)}

    def _imported_names(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = self._base(node)
            yield from (f"{base}.{alias.name}" for alias in node.names)

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        steps = node.level - 1 if self.is_package else node.level
        parent = self.name.split(".")[: -steps or None]
        return ".".join([*parent, *filter(None, [node.module])])


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method, including nested ones."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _read(path: Path, root: Path) -> Module:
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module.parse(name, path, path.read_text(encoding="utf-8"))


@cache
def library() -> tuple[Module, ...]:
    return _read_all(ROOT / "src", ROOT / "src")


@cache
def test_modules() -> tuple[Module, ...]:
    return _read_all(ROOT / "tests", ROOT)


test_modules.__test__ = False  # type: ignore[attr-defined]


def _read_all(folder: Path, root: Path) -> tuple[Module, ...]:
    """Parse every file below the folder without garbage collection.

    The millions of nodes live until the end of the run. Frozen nodes are not traversed by later
    collections.
    """
    gc.collect()
    gc.disable()
    try:
        return tuple(_read(path, root) for path in sorted(folder.rglob("*.py")))
    finally:
        gc.freeze()
        gc.enable()
