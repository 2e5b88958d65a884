"""The Node.js example of the documentation runs on Node's test runner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.environment import node_modules
from tests.docs.pages import ROOT, blocks

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("clients")]

_PAGE = ROOT / "docs" / "how-to" / "test-from-any-language.md"
# Jest's hooks are globals with the names of the hooks of Node's runner.
_HOOKS = """
const { test, beforeEach, afterEach } = require("node:test");
Object.assign(globalThis, { test, beforeEach, afterEach });
"""


def test_node_example_passes(tmp_path: Path) -> None:
    """It starts the broker, advances its clock, receives its message and leaves no process running."""
    for block in blocks(_PAGE.read_text(encoding="utf-8")):
        if block.language == "javascript" and block.title is not None:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    (tmp_path / "hooks.js").write_text(_HOOKS, encoding="utf-8")
    ran = subprocess.run(
        ["node", "--require", "./hooks.js", "--test-reporter", "tap", "orders.test.js"],
        cwd=tmp_path,
        env={
            **os.environ,
            "NODE_PATH": str(node_modules()),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "# pass 1\n" in ran.stdout
