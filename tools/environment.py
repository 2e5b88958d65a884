"""Create the virtual environment for make. This script only uses the standard library.

make runs this if the environment does not exist or is older than the files that describe it. If
Debian packages are missing, they are installed if this runs as root, otherwise the error names
them. The environment can then be used without a network.

    python3 tools/environment.py
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
STAMP = ENVIRONMENT / ".ready"
PINS = ROOT / "tools" / "pins"
# This is the start of pip's message if a file does not match its pinned hash.
MISMATCH = "DO NOT MATCH THE HASHES"
OLDEST = (3, 11)


def main():
    """Create the environment and write its stamp."""
    require_python()
    if not interpreter().exists():
        create()
    install()
    STAMP.touch()


def require_python():
    """Exit with an error if this Python is too old."""
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        fail(
            "expected Python 3.11 or newer, found " + found + ", " + sys.executable + ".",
            "Install a newer one and run: make PYTHON=/path/to/python3.13",
        )


def create():
    if importlib.util.find_spec("ensurepip") is None:
        install_venv_package()
    say("creating .venv")
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)])
    if made.returncode:
        fail(
            "The virtual environment could not be created.",
            "Install Python's venv module (Debian and Ubuntu: python3-venv) and try again.",
        )


def install_venv_package():
    """Install the Debian package with ensurepip. If this is not possible, the error names it."""
    minor = ".".join(map(str, sys.version_info[:2]))
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        fail(
            "This Python has no venv module with pip (ensurepip is missing).",
            "Install it (Debian and Ubuntu: apt-get install python3-venv) and try again.",
        )
    say("installing python3-venv")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False)
    for package in ("python" + minor + "-venv", "python3-venv"):
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        if subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL).returncode == 0:
            return
    fail("python3-venv could not be installed.", "Install it manually and try again.")


def install():
    """Install the pinned packages with hash checks, and the project in editable mode.

    The build backend is pinned and runs without isolation. If pyproject.toml is edited, the
    environment can be refreshed without a network unless a requirement was added.
    """
    say("installing the project and its tools into .venv")
    project = ["--no-build-isolation", "-e", str(ROOT) + "[all,dev]"]
    status, output = install_pins()
    if status == 0:
        # No index is used, because all requirements must have been installed before.
        if pip("--no-index", *project)[0]:
            fail(
                "pyproject.toml requires packages that are not pinned (pip's message is above).",
                "Run: make pin",
            )
        return
    if MISMATCH in output:
        fail(
            "A package does not match its pinned hash (pip's message is above).",
            "Do not use it. Check from where pip installs packages, and who may have changed them.",
        )
    say("the pinned versions are not available here; installing the newest that fit")
    if pip("hatchling", "editables")[0] or pip(*project)[0]:
        fail(
            "pip could not install the requirements of the project (its message is above).",
            "The first setup needs a package index. Check the network and pip's settings.",
        )


def install_pins():
    """Install the pins with two processes of pip. Returns the highest exit status and the output.

    A single pip unpacks on one core and waits for the network in between. The pins are complete, so
    no dependencies are resolved, and no package is in both halves.
    """
    pins = sorted({pin for path in PINS.glob("*.txt") for pin in pins_of(path.read_text())})
    with tempfile.TemporaryDirectory() as folder:
        halves = []
        for number in (0, 1):
            half = Path(folder) / (str(number) + ".txt")
            half.write_text("".join(pins[number::2]))
            halves.append(("--no-deps", "--require-hashes", "-r", str(half)))
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(lambda half: pip(*half), halves))
    return max(status for status, _ in results), "".join(output for _, output in results)


def pins_of(text):
    """Return the pins of a file with their hashes. Lines that end with a backslash are joined."""
    lines = (line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#"))
    pins = re.sub(r"\\\n\s*", " ", "".join(lines)).splitlines(keepends=True)
    return [pin for pin in pins if pin.strip()]


def pip(*arguments):
    """Run pip in the environment. Returns its exit status and its messages, which are also printed."""
    quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # Do not compile the modules, because most of them are never imported.
    command = [str(interpreter()), "-m", "pip", "install", "-qq", "--no-compile", *arguments]
    ran = subprocess.run(command, env=quiet, stderr=subprocess.PIPE, text=True)
    sys.stderr.write(ran.stderr)
    return ran.returncode, ran.stderr


def interpreter():
    """Return the Python interpreter of the environment."""
    return ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def say(text):
    """Print a message about the progress to stderr."""
    sys.stderr.write("hopback: " + text + "\n")


def fail(found, remedy):
    """Print an error and its remedy, and exit."""
    say(found)
    say(remedy)
    sys.exit(1)


if __name__ == "__main__":
    main()
