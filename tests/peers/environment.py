"""The suites' own Python, with the packages, and their sources: below `.work/peers`, never committed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.harness.archives import unpack
from tests.peers.suites import REQUIREMENTS, SUITES

__all__ = ["WORK", "make", "python", "source_of"]

WORK = (Path(__file__).parents[2] / ".work" / "peers").resolve()
"""Without links: pytest names tests by the folders that it finds itself in."""
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


def python() -> Path:
    """The interpreter that has the packages."""
    return WORK / "python" / "bin" / "python"


def source_of(package: str) -> Path:
    """The folder of an unpacked source package."""
    return WORK / "sources" / package


def make() -> None:
    """Install the packages and unpack their sources; RuntimeError says what was not available."""
    wanted = "\n".join((str(sys.version_info[:2]), *REQUIREMENTS, *(s.package for s in SUITES)))
    stamp = WORK / ".ready"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    sys.stderr.write(f"hopback: installing other projects and their tests in {WORK}\n")
    _run(sys.executable, "-m", "venv", str(WORK / "python"))
    packages = [suite.package for suite in SUITES]
    _run(str(python()), *_PIP, "install", *packages, *REQUIREMENTS)
    for suite in SUITES:
        _unpack(suite.package, suite.name)
    stamp.write_text(wanted)


def _unpack(package: str, name: str) -> None:
    """Its source package as the registry has it."""
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
        said = (done.stderr or done.stdout).strip()[-1000:]
        raise RuntimeError(f"expected `{' '.join(command)}` to succeed; it said: {said}")
