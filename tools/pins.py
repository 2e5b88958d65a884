"""Write the pinned versions and hashes for CI and the container.

`make pin` runs this with the Python of the environment. This is the oldest supported version,
because newer ones do not need additional packages. Versions and hashes come from pip's index.

    python tools/pins.py           resolve again: the newest versions that fit
    python tools/pins.py --keep    keep the pinned versions and fetch their hashes again
"""

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tools" / "pins"
CLIENTS = ROOT / "tests" / "clients"
SETS = {
    "build": ("the build backend", ("hatchling", "editables")),
    "all": ("the requirements of hopback[all], also in the container", (str(ROOT) + "[all]",)),
    "dev": ("the additional requirements of tests and checks", (str(ROOT) + "[all,dev]",)),
}
PIN = re.compile(r"^([\w.-]+)==([^\s\\]+)", re.MULTILINE)
LINK = re.compile(r'href="([^"]+)#sha256=([0-9a-f]{64})"')


def main(arguments):
    """Resolve all sets with the versions of the largest one, fetch the hashes and write the files."""
    limits = read_pins() if "--keep" in arguments else resolve_requirements(SETS["dev"][1], {})
    hashes = {}
    done = set()
    for name, (purpose, requirements) in SETS.items():
        found = resolve_requirements(requirements, limits)
        if name == "dev":
            found = {key: version for key, version in found.items() if key not in done}
        done |= found.keys()
        write(FOLDER / (name + ".txt"), purpose, found, hashes)
    # The clients have their own environment, so their versions do not depend on the others.
    file = CLIENTS / "requirements.txt"
    limits = read_pins(file) if "--keep" in arguments else {}
    found = resolve_requirements(("-r", str(CLIENTS / "requirements.in")), limits)
    write(file, "what requirements.in needs", found, hashes)


def write(file, purpose, found, hashes):
    """Write a file with pins. `hashes` caches the hashes of each version."""
    lines = ["# Written by `make pin`: " + purpose + "."]
    for key, version in sorted(found.items()):
        if (key, version) not in hashes:
            print("hopback: " + key + " " + version, file=sys.stderr)
            hashes[key, version] = hashes_of(key, version)
        lines.append(key + "==" + version + " \\")
        lines.append(" \\\n".join("    --hash=sha256:" + one for one in hashes[key, version]))
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def read_pins(*files):
    """Return the pinned versions by name. By default, all sets that are installed together are
    read.
    """
    known = files or FOLDER.glob("*.txt")
    return dict(pair for path in known for pair in PIN.findall(path.read_text()))


def resolve_requirements(requirements, limits):
    """Resolve requirements and return the versions by name. The project itself is omitted."""
    FOLDER.parent.joinpath("limits.tmp").write_text(
        "".join(name + "==" + version + "\n" for name, version in limits.items())
    )
    command = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    limited = ["-c", str(FOLDER.parent / "limits.tmp")]
    try:
        report = json.loads(pip(*command, "--no-build-isolation", *limited, *requirements))
    finally:
        FOLDER.parent.joinpath("limits.tmp").unlink()
    found = {
        normal(one["metadata"]["name"]): one["metadata"]["version"] for one in report["install"]
    }
    found.pop("hopback", None)
    return found


def hashes_of(name, version):
    """Return the hashes of all files of a version in the index, for all platforms."""
    listing = pip("index", "versions", "--pre", "-vv", name)
    pages = re.findall(r"^\* (https?://\S+)", listing, re.MULTILINE)
    found = set()
    for page in pages:
        with urllib.request.urlopen(page, timeout=60) as response:
            text = response.read().decode()
        for address, digest in LINK.findall(text):
            file = urllib.parse.unquote(address.rpartition("/")[2])
            if is_of(file, name, version):
                found.add(digest)
    if not found:
        sys.exit("hopback: expected files of " + name + " " + version + " in the index, found none")
    return sorted(found)


def is_of(file, name, version):
    """Return True if the file is a wheel or source archive of this version."""
    if file.endswith(".whl"):
        named, number = file.split("-")[:2]
    else:
        named, _, rest = file.rpartition("-")
        number = re.sub(r"\.(tar\.gz|zip|tar\.bz2)$", "", rest)
    return normal(named) == name and number == version


def normal(name):
    """Return the normalized name of a project."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(*arguments):
    """Run pip and return its output."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(ran.stderr)
    return ran.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
