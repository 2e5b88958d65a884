"""The environment setup installs only pinned files."""

from __future__ import annotations

import hashlib
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

_TOOLS = Path(__file__).resolve().parents[2] / "tools"


def _wheel(folder: Path) -> str:
    """A package of one file and its hash."""
    path = folder / "pinned-1.0-py3-none-any.whl"
    info = "pinned-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pinned.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: pinned\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the setup and a package. The environment of the first test serves all tests."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "tools" / "pins").mkdir(parents=True)
    shutil.copy(_TOOLS / "environment.py", folder / "tools")
    return folder


@pytest.mark.xdist_group("set-up")
@pytest.mark.parametrize(
    ("version", "is_wrong", "message", "falls_back"),
    [
        ("1.0", False, "pyproject.toml requires packages that are not pinned", False),
        ("1.0", True, "does not match its pinned hash", False),
        ("2.0", False, "the pinned versions are not available here", True),
    ],
)
def test_file_with_wrong_hash_is_refused(
    project: Path, version: str, is_wrong: bool, message: str, falls_back: bool
) -> None:
    """Only an unavailable version leads to the newest."""
    digest = _wheel(project)
    for installed in project.glob(".venv/lib/*/site-packages/pinned*"):
        shutil.rmtree(installed) if installed.is_dir() else installed.unlink()
    expected = "0" * 64 if is_wrong else digest
    pin = f"pinned=={version} \\\n    --hash=sha256:{expected}\n"
    (project / "tools" / "pins" / "all.txt").write_text(f"# pins\n{pin}")
    ran = subprocess.run(
        [sys.executable, str(project / "tools" / "environment.py")],
        env={"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert message in ran.stderr
    assert ("installing the newest" in ran.stderr) == falls_back
    assert not (project / ".venv" / ".ready").exists()


_SAFE: dict[str, object] = {"name": "click", "version": "8", "vulns": []}
_WEAK = {**_SAFE, "vulns": [{"id": "CVE-1", "fix_versions": ["9"]}]}
_UNKNOWN = {"name": "rich", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "status", "out", "err"),
    [
        ([_SAFE], 0, "1 pinned packages, 0 known vulnerabilities\n", ""),
        ([_SAFE, _WEAK], 1, "click 8 CVE-1 fixed in 9\n", ""),
        ([_SAFE, _UNKNOWN], 2, "", "could not reach its database for 1 of 2 packages"),
        ([_WEAK, _UNKNOWN], 1, "click 8 CVE-1 fixed in 9\n", "could not reach its database"),
    ],
)
def test_audit_without_answer_has_its_own_exit_code(
    capsys: pytest.CaptureFixture[str],
    packages: list[dict[str, object]],
    status: int,
    out: str,
    err: str,
) -> None:
    assert runpy.run_path(str(_TOOLS / "audit.py"))["report"](packages) == status
    output = capsys.readouterr()
    assert output.out.startswith(out)
    assert err in output.err
