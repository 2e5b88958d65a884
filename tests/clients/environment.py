"""Where clients of other makers live: an environment of their own, made on first use.

Whatever cannot be had is an error with a sentence that says what to do, never a skipped test.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.packages import install

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PROGRAMS", "Unavailable", "c_client", "node_modules", "peers_python"]

PROGRAMS = Path(__file__).parent / "programs"
_WORK = Path(__file__).parents[2] / ".work" / "clients"
_REQUIREMENTS = Path(__file__).parent / "requirements.txt"
_AMQPLIB = "amqplib@2.3.1"


class Unavailable(RuntimeError):
    """A client cannot be had on this machine; the text says what to do."""


def peers_python() -> Path:
    """The interpreter that has the Python clients."""
    folder = _WORK / "venv"
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
    with _once(folder, wanted) as missing:
        if missing:
            _run([sys.executable, "-m", "venv", "--clear", str(folder)])
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q"]
            _run([*pip, "--disable-pip-version-check", "-r", str(_REQUIREMENTS)])
    return folder / "bin" / "python"


def node_modules() -> Path:
    """The folder that has amqplib, for NODE_PATH."""
    _need("npm", "nodejs", "npm")
    folder = _WORK / "node"
    with _once(folder, _AMQPLIB) as missing:
        if missing:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _run(["npm", "install", "--silent", "--no-audit", "--prefix", str(folder), _AMQPLIB])
    return folder / "node_modules"


def c_client() -> Path:
    """The program that uses librabbitmq, built here."""
    _need("gcc", "gcc", "libc6-dev", "librabbitmq-dev")
    source, program = PROGRAMS / "librabbitmq_client.c", _WORK / "librabbitmq_client"
    _WORK.mkdir(parents=True, exist_ok=True)
    _run(["gcc", "-O1", "-Wall", "-o", str(program), str(source), "-lrabbitmq"])
    return program


def _need(command: str, *packages: str) -> None:
    if shutil.which(command) is None:
        try:
            install(packages)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            raise Unavailable(str(error)) from error


def _run(command: list[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        told = (ran.stderr or ran.stdout).strip()[-500:]
        raise Unavailable(f"expected `{' '.join(command)}` to succeed; it said: {told}")


@contextmanager
def _once(folder: Path, wanted: str) -> Iterator[bool]:
    """Whether the folder has to be made; other processes of the run wait meanwhile."""
    _WORK.mkdir(parents=True, exist_ok=True)
    stamp = folder / ".ready"
    with (_WORK / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = stamp.exists() and stamp.read_text() == wanted
        yield not ready
        stamp.write_text(wanted)
