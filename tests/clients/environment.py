"""Where clients of other makers live: environments of their own below `.work/clients`.

`python -m tests.clients.environment` makes them; `make test` does so before its tests, because that
needs the network and the packages of `tests/harness/packages.py`. The tests only look: what is not
there is an error with a sentence that says what to do, never a skipped test.
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
"""For each environment of npm its `package.json` and its lock file with the hashes of all packages."""


class Unavailable(RuntimeError):
    """A client is not there, or not available; the text says what to do."""


def peers_python() -> Path:
    """The interpreter that has the Python clients."""
    return _ready("python") / "bin" / "python"


def node_modules() -> Path:
    """The folder that has amqplib, for NODE_PATH."""
    return _ready("node") / "node_modules"


def oidc_modules() -> Path:
    """The folder that has a provider of OpenID Connect."""
    return _ready("oidc") / "node_modules"


def pyright() -> Path:
    """The script that node runs to check types."""
    return _ready("pyright") / "node_modules" / "pyright" / "index.js"


def c_client() -> Path:
    """The program that uses librabbitmq."""
    return _ready("c") / "librabbitmq_client"


def main() -> int:
    """Make what is not there yet or is not what is wanted now; 1 with the reason if that fails."""
    try:
        for name, wanted in _wanted().items():
            folder = _WORK / name
            if not _is_ready(folder, wanted):
                sys.stderr.write(f"hopback: making the {name} clients in {folder}\n")
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                _make(name, folder)
                (folder / ".ready").write_text(wanted)
    except Unavailable as error:
        sys.stderr.write(f"hopback: {error}\n")
        return 1
    return 0


def _wanted() -> dict[str, str]:
    """Name of a folder → what it is made from: made from something else, it is made again."""
    source = (PROGRAMS / "librabbitmq_client.c").read_bytes()
    python = f"{sys.version_info[:2]} {_digest(_REQUIREMENTS.read_bytes())}"
    return {
        "python": python,
        "c": _digest(source),
        **{
            name: _digest((_LOCKS / name / "package-lock.json").read_bytes())
            for name in ("node", "oidc", "pyright")
        },
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_ready(folder: Path, wanted: str) -> bool:
    stamp = folder / ".ready"
    return stamp.exists() and stamp.read_text() == wanted


def _ready(name: str) -> Path:
    if not _is_ready(_WORK / name, _wanted()[name]):
        raise Unavailable(
            f"expected the {name} clients in {_WORK / name}, found none or older ones;"
            " run `make test-needs`, or leave their tests out with -m 'not clients'"
        )
    return _WORK / name


def _make(name: str, folder: Path) -> None:
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
        told = (ran.stderr or ran.stdout).strip()[-500:]
        raise Unavailable(f"expected `{' '.join(command)}` to succeed; it said: {told}")


if __name__ == "__main__":
    raise SystemExit(main())
