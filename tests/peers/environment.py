"""The Python environment of the suites with their packages and sources, below `.work/peers`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.harness.archives import unpack
from tests.peers.suites import REQUIREMENTS, SUITES

__all__ = ["WORK", "create", "python", "source_of"]

WORK = (Path(__file__).parents[2] / ".work" / "peers").resolve()
"""Resolved, because pytest names tests by their real paths."""
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


def python() -> Path:
    """Return the interpreter with the packages."""
    return WORK / "python" / "bin" / "python"


def source_of(package: str) -> Path:
    """Return the folder of an unpacked source package."""
    return WORK / "sources" / package


def create() -> None:
    """Install the packages and unpack their sources. Raise RuntimeError with the failed command."""
    content = "\n".join((str(sys.version_info[:2]), *REQUIREMENTS, *(s.package for s in SUITES)))
    stamp = WORK / ".ready"
    if stamp.exists() and stamp.read_text() == content:
        return
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    sys.stderr.write(f"hopback: installing other projects and their tests in {WORK}\n")
    _run(sys.executable, "-m", "venv", str(WORK / "python"))
    packages = [suite.package for suite in SUITES]
    _run(str(python()), *_PIP, "install", *packages, *REQUIREMENTS)
    for suite in SUITES:
        _unpack(suite.package, suite.name)
    stamp.write_text(content)


def _unpack(package: str, name: str) -> None:
    """Download and unpack the source package from the registry."""
    folder = WORK / "downloads" / name
    _run(
        str(python()),
        *_PIP,
        "download",
        "--no-deps",
        "--no-binary",
        name,
        "-d",
        str(folder),
        package,
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        unpack(packed, folder)
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    source_of(package).parent.mkdir(parents=True, exist_ok=True)
    unpacked.rename(source_of(package))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = (done.stderr or done.stdout).strip()[-1000:]
        raise RuntimeError(f"expected `{' '.join(command)}` to succeed; it printed: {output}")
