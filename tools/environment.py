"""Make the virtual environment that every make target runs in. Standard library only.

Run by make when the environment is missing or older than the files that describe it. What the
machine lacks is installed where that is possible (Debian packages, as root) and named in one clear
sentence where it is not. Once made, the environment needs no network.

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
# How pip begins when a file is not the one that was pinned.
MISMATCH = "DO NOT MATCH THE HASHES"
OLDEST = (3, 11)


def main():
    """Make the environment, then stamp it."""
    require_python()
    if not interpreter().exists():
        create()
    install()
    STAMP.touch()


def require_python():
    """Stop with a sentence when this Python is too old."""
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        fail(
            "Python 3.11 or newer is needed, and this is " + found + ", " + sys.executable + ".",
            "Install a newer one and say where: make PYTHON=/path/to/python3.13",
        )


def create():
    """Create an empty environment with pip in it."""
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
    """Debian ships ensurepip apart: install it where we may, else say what to do."""
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
    fail("python3-venv could not be installed.", "Install it by hand and try again.")


def install():
    """Install what is pinned, hash by hash, and then the project, editable, beside it.

    The build backend is among the pins and builds without isolation, so that a refresh after an edit of
    pyproject.toml needs nothing from the network as long as no requirement was added.
    """
    say("installing the project and its tools into .venv")
    project = ["--no-build-isolation", "-e", str(ROOT) + "[all,dev]"]
    status, said = install_pins()
    if status == 0:
        # No index: whatever the project requires has to be there by now.
        if pip("--no-index", *project)[0]:
            fail(
                "pyproject.toml requires what is not pinned (pip's message is above).",
                "Run: make pin",
            )
        return
    if MISMATCH in said:
        fail(
            "A package is not the one that was pinned (pip's message is above).",
            "Do not use it. See where pip takes packages from, and who may have changed them.",
        )
    say("the pinned versions are not available here; taking the newest that fit")
    if pip("hatchling", "editables")[0] or pip(*project)[0]:
        fail(
            "pip could not install what the project needs (its message is above).",
            "The first set-up needs a package index; check the network and pip's settings.",
        )


def install_pins():
    """Let two pips at once install half of the pins each: the worst exit status, and their words.

    One pip unpacks on one core and waits for the network in between. The pins are complete, so none of the
    two has to look for what a package depends on, and no package is in both halves.
    """
    pins = sorted({pin for path in PINS.glob("*.txt") for pin in pins_of(path.read_text())})
    with tempfile.TemporaryDirectory() as folder:
        halves = []
        for number in (0, 1):
            half = Path(folder) / (str(number) + ".txt")
            half.write_text("".join(pins[number::2]))
            halves.append(("--no-deps", "--require-hashes", "-r", str(half)))
        with ThreadPoolExecutor() as together:
            ended = list(together.map(lambda half: pip(*half), halves))
    return max(status for status, _ in ended), "".join(said for _, said in ended)


def pins_of(text):
    """The pins of a file, each with its hashes; a line that ends in a backslash goes on."""
    lines = (line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#"))
    pins = re.sub(r"\\\n\s*", " ", "".join(lines)).splitlines(keepends=True)
    return [pin for pin in pins if pin.strip()]


def pip(*arguments):
    """Run the environment's own pip: its exit status and its words, which are shown, too."""
    quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # Not compiled: most modules of what is installed are never imported, the others are when they are.
    command = [str(interpreter()), "-m", "pip", "install", "-qq", "--no-compile", *arguments]
    ran = subprocess.run(command, env=quiet, stderr=subprocess.PIPE, text=True)
    sys.stderr.write(ran.stderr)
    return ran.returncode, ran.stderr


def interpreter():
    """The environment's Python."""
    return ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def say(text):
    """Progress goes to stderr."""
    sys.stderr.write("hopback: " + text + "\n")


def fail(found, remedy):
    """End with what was found and what to do."""
    say(found)
    say(remedy)
    sys.exit(1)


if __name__ == "__main__":
    main()
