"""The package as users get it: built, installed into a separate environment and run as a process."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.shared import made_once

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed wheel."""

    wheel: Path
    python: Path

    @property
    def command(self) -> Path:
        """The `hopback` script that the installation made."""
        return self.python.with_name("hopback")

    def run(
        self, *arguments: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the command outside the source tree by default."""
        return subprocess.run(
            [str(self.command), *arguments],
            cwd=cwd or self.wheel.parent,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture(scope="session")
def installed() -> Installed:
    """The built wheel in a new environment that uses only our dependencies, once per run."""
    folder = made_once("installed", _install)
    return Installed(next(folder.glob("*.whl")), folder / "environment" / "bin" / "python")


def _install(folder: Path) -> None:
    wheel = _build(folder)
    environment = folder / "environment"
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    _borrow_dependencies(environment)
    _run(
        *(sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install"),
        *("--quiet", "--no-deps", "--no-index", str(wheel)),
    )


def _build(folder: Path) -> Path:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    _run(*command, str(folder), str(ROOT))
    return next(folder.glob("*.whl"))


def _borrow_dependencies(environment: Path) -> None:
    """Make the dependencies visible.

    An editable install next to them stays hidden, because it is a .pth file.
    """
    ours = environment / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (ours / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
