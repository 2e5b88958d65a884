"""Environments with other projects' clients, below `.work/clients`.

`python -m tests.clients.environment` creates them. It needs the network and the packages of
`tests/harness/packages.py`, so `make test` runs it before its tests. The tests only check that the
clients exist. A missing client is an error with a remedy, never a skipped test.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = [
    "PROGRAMS",
    "Unavailable",
    "c_client",
    "main",
    "node_modules",
    "oidc_modules",
    "peers_python",
    "pyright",
]

PROGRAMS = Path(__file__).parent / "programs"
_WORK = Path(__file__).parents[2] / ".work" / "clients"
_REQUIREMENTS = Path(__file__).parent / "requirements.txt"
_LOCKS = Path(__file__).parent / "locks"
"""The folder of each npm environment contains `package.json` and a lock file with the hashes of all
packages.
"""


class Unavailable(RuntimeError):
    """A client is missing or cannot be installed. The text contains the remedy."""


def peers_python() -> Path:
    """Return the interpreter of the environment with the Python clients."""
    return _require("python") / "bin" / "python"


def node_modules() -> Path:
    """Return the folder with amqplib, for NODE_PATH."""
    return _require("node") / "node_modules"


def oidc_modules() -> Path:
    """Return the folder with an OpenID Connect provider."""
    return _require("oidc") / "node_modules"


def pyright() -> Path:
    """Return the script that node runs to check types."""
    return _require("pyright") / "node_modules" / "pyright" / "index.js"


def c_client() -> Path:
    """Return the program that uses librabbitmq."""
    return _require("c") / "librabbitmq_client"


def main() -> int:
    """Create missing and outdated environments. Return 1 and print the reason on failure."""
    try:
        for name, source in _sources().items():
            folder = _WORK / name
            if not _is_ready(folder, source):
                sys.stderr.write(f"hopback: creating the {name} clients in {folder}\n")
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                _create(name, folder)
                (folder / ".ready").write_text(source)
    except Unavailable as error:
        sys.stderr.write(f"hopback: {error}\n")
        return 1
    return 0


def _sources() -> dict[str, str]:
    """Return a digest of the source of each folder. A folder with another digest is created again."""
    program = (PROGRAMS / "librabbitmq_client.c").read_bytes()
    python = f"{sys.version_info[:2]} {_digest(_REQUIREMENTS.read_bytes())}"
    return {
        "python": python,
        "c": _digest(program),
        **{
            name: _digest((_LOCKS / name / "package-lock.json").read_bytes())
            for name in ("node", "oidc", "pyright")
        },
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_ready(folder: Path, source: str) -> bool:
    stamp = folder / ".ready"
    return stamp.exists() and stamp.read_text() == source


def _require(name: str) -> Path:
    if not _is_ready(_WORK / name, _sources()[name]):
        raise Unavailable(
            f"expected the {name} clients in {_WORK / name}, found none or outdated ones;"
            " run `make test-needs`, or deselect their tests with -m 'not clients'"
        )
    return _WORK / name


def _create(name: str, folder: Path) -> None:
    match name:
        case "python":
            _run(sys.executable, "-m", "venv", str(folder))
            pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "-q")
            hashed = ("--require-hashes", "-r", str(_REQUIREMENTS))
            _run(*pip, "--disable-pip-version-check", *hashed)
        case "node" | "oidc" | "pyright":
            for file in ("package.json", "package-lock.json"):
                shutil.copy(_LOCKS / name / file, folder)
            options = ("--silent", "--no-audit", "--ignore-scripts")
            _run("npm", "ci", *options, folder=folder)
        case "c":
            source = str(PROGRAMS / "librabbitmq_client.c")
            program = str(folder / "librabbitmq_client")
            _run("gcc", "-O1", "-Wall", "-o", program, source, "-lrabbitmq")


def _run(*command: str, folder: Path | None = None) -> None:
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Unavailable(f"expected the command {command[0]}, found none") from error
    if ran.returncode:
        output = (ran.stderr or ran.stdout).strip()[-500:]
        raise Unavailable(f"expected `{' '.join(command)}` to succeed; it printed: {output}")


if __name__ == "__main__":
    raise SystemExit(main())
