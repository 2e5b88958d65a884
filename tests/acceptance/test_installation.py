"""The wheel: its contents, and a light command that works anywhere."""

from __future__ import annotations

import subprocess
import zipfile
from email.parser import Parser
from typing import TYPE_CHECKING

import pytest

from hopback import __version__

if TYPE_CHECKING:
    from tests.acceptance.conftest import Installed


def test_wheel_contains_only_the_package(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {
        "hopback",
        f"hopback-{__version__}.dist-info",
    }
    assert "hopback/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_metadata_names_python_and_dependencies(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        text = archive.read(f"hopback-{__version__}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    needed = metadata.get_all("Requires-Dist") or []
    core = {line.split(">")[0] for line in needed if "extra ==" not in line}
    assert metadata["Requires-Python"] == ">=3.11"
    assert core == {"click", "msgspec", "rich", "tomli-w"}
    assert {"all", "management", "speed"} <= set(metadata.get_all("Provides-Extra") or [])


def test_installed_package_is_the_wheel(installed: Installed) -> None:
    where = subprocess.run(
        [str(installed.python), "-c", "import hopback; print(hopback.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=installed.wheel.parent,
    ).stdout
    assert str(installed.python.parent.parent) in where


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["topology", "--help"]])
def test_help_imports_no_heavy_modules(installed: Installed, arguments: list[str]) -> None:
    program = (
        "import sys; from hopback.cli.app import run; code = run(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    ran = subprocess.run(
        [str(installed.python), "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(ran.stderr.split())
    heavy = {
        "asyncio",
        "httpx",
        "rich.table",
        "hopback.broker",
        "hopback.designs",
        "hopback.policy",
        "hopback.wire",
    }
    assert "hopback.cli.app" in loaded
    assert loaded & heavy == set()


def test_python_m_hopback_is_the_command(installed: Installed) -> None:
    ran = subprocess.run(
        [str(installed.python), "-m", "hopback", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=installed.wheel.parent,
    )
    assert ran.stdout == f"hopback {__version__}\n"
