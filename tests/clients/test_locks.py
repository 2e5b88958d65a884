"""Other projects' clients are installed from lock files with hashes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

_CLIENTS = Path(__file__).parent


def test_python_clients_have_hashes() -> None:
    text = re.sub(r"\\\n\s*", "", (_CLIENTS / "requirements.txt").read_text())
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[^\s]+ ?(--hash=sha256:[0-9a-f]{64} ?)+", x) for x in lines)
    pinned = {line.partition("==")[0] for line in lines}
    wanted = re.findall(r"^([\w.-]+)", (_CLIENTS / "requirements.in").read_text(), re.MULTILINE)
    assert set(wanted) <= pinned


@pytest.mark.parametrize("name", ["node", "oidc", "pyright"])
def test_packages_of_npm_have_hashes(name: str) -> None:
    lock = json.loads((_CLIENTS / "locks" / name / "package-lock.json").read_text())
    wanted = json.loads((_CLIENTS / "locks" / name / "package.json").read_text())["dependencies"]
    packages = {path: entry for path, entry in lock["packages"].items() if path}
    assert all(entry["integrity"].startswith("sha512-") for entry in packages.values())
    for package, version in wanted.items():
        assert packages[f"node_modules/{package}"]["version"] == version
