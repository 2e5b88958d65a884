"""Create the environment of the clients, build the C client and describe the machine."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = [
    "ROOT",
    "WORK",
    "Machine",
    "build_c_client",
    "c_version",
    "describe",
    "peers_python",
    "processor",
]

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".work" / "bench"
_REQUIREMENTS = ROOT / "benchmarks" / "requirements.txt"
_OURS = f"{ROOT}[store,metrics,tracing]"
_PEERS = ("aio-pika", "aiormq", "dramatiq", "faststream", "kombu", "pika", "uvloop")


def peers_python() -> Path:
    """Return the Python of the peers. Its environment is created if it does not exist or the pins
    have changed.
    """
    folder = WORK / "venv"
    python = folder / "bin" / "python"
    stamp = folder / ".ready"
    digest = hashlib.sha256(_REQUIREMENTS.read_bytes() + _OURS.encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        print("creating the peers' environment …", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(_REQUIREMENTS), "-e", _OURS], check=True)
        stamp.write_text(digest)
    return python


def build_c_client() -> Path | None:
    """Build the C client and return its path. Returns None if there is no compiler or no
    librabbitmq.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    WORK.mkdir(parents=True, exist_ok=True)
    program = WORK / "c_client"
    source = ROOT / "benchmarks" / "c_client.c"
    command = [compiler, "-O2", "-o", str(program), str(source), "-lrabbitmq"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    return program if built.returncode == 0 else None


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which the benchmarks run."""

    cores: int
    memory_gib: float
    processor: str
    system: str
    python: str
    versions: dict[str, str]


def describe(python: Path, broker: str) -> Machine:
    """Describe the machine and all relevant versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = {
        "RabbitMQ": broker,
        "hopback": metadata.version("hopback"),
        **_peer_versions(python),
    }
    if (c := c_version()) is not None:
        versions["librabbitmq (C)"] = c
    return Machine(
        os.cpu_count() or 1,
        round(memory, 1),
        processor(),
        f"{platform.system()} {platform.machine()}",
        platform.python_version(),
        versions,
    )


def _peer_versions(python: Path) -> dict[str, str]:
    code = (
        "from importlib import metadata\n"
        f"print(*[metadata.version(name) for name in {_PEERS!r}], sep='\\n')"
    )
    ran = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return dict(zip(_PEERS, ran.stdout.split(), strict=True))


def c_version() -> str | None:
    """Return the version of librabbitmq, or None if it is unknown."""
    try:
        ran = subprocess.run(
            ["pkg-config", "--modversion", "librabbitmq"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return "as installed"
    return ran.stdout.strip() or None


def processor() -> str:
    """Return the model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, "unknown")
