"""Write the pins: what CI and the container install, with the hashes of every file of each version.

Run by `make pin` with the environment's Python, the oldest that is supported: newer ones need no more.
The versions and the hashes come from the index that pip uses here, asked through pip.

    python tools/pins.py           resolve anew: the newest versions that fit
    python tools/pins.py --keep    the versions that are pinned now, and their hashes anew
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
    "build": ("what builds the package", ("hatchling", "editables")),
    "all": ("what hopback[all] needs; the container has it", (str(ROOT) + "[all]",)),
    "dev": ("what the tests and checks need beside that", (str(ROOT) + "[all,dev]",)),
}
PIN = re.compile(r"^([\w.-]+)==([^\s\\]+)", re.MULTILINE)
LINK = re.compile(r'href="([^"]+)#sha256=([0-9a-f]{64})"')


def main(arguments):
    """Resolve each set within the pins of the largest, find the hashes, write the files."""
    limits = pinned() if "--keep" in arguments else resolved(SETS["dev"][1], {})
    hashes = {}
    done = set()
    for name, (what, requirements) in SETS.items():
        found = resolved(requirements, limits)
        if name == "dev":
            found = {key: version for key, version in found.items() if key not in done}
        done |= found.keys()
        write(FOLDER / (name + ".txt"), what, found, hashes)
    # The clients have an environment of their own, so their versions need not fit the others.
    file = CLIENTS / "requirements.txt"
    limits = pinned(file) if "--keep" in arguments else {}
    found = resolved(("-r", str(CLIENTS / "requirements.in")), limits)
    write(file, "what requirements.in needs", found, hashes)


def write(file, what, found, hashes):
    """Write one file of pins; `hashes` remembers those of each version."""
    lines = ["# Written by `make pin`: " + what + "."]
    for key, version in sorted(found.items()):
        if (key, version) not in hashes:
            print("hopback: " + key + " " + version, file=sys.stderr)
            hashes[key, version] = hashes_of(key, version)
        lines.append(key + "==" + version + " \\")
        lines.append(" \\\n".join("    --hash=sha256:" + one for one in hashes[key, version]))
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def pinned(*files):
    """Name → version, as these files, or all that are installed together, say now."""
    known = files or FOLDER.glob("*.txt")
    return dict(pair for path in known for pair in PIN.findall(path.read_text()))


def resolved(requirements, limits):
    """Name → version of all that the requirements take, themselves included, the project left out."""
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
    """The hashes of all files of that version, for every system, in the index's own listing."""
    told = pip("index", "versions", "--pre", "-vv", name)
    pages = re.findall(r"^\* (https?://\S+)", told, re.MULTILINE)
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
    """Whether a file is a wheel or a source archive of that version."""
    if file.endswith(".whl"):
        named, number = file.split("-")[:2]
    else:
        named, _, rest = file.rpartition("-")
        number = re.sub(r"\.(tar\.gz|zip|tar\.bz2)$", "", rest)
    return normal(named) == name and number == version


def normal(name):
    """A project's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(*arguments):
    """What pip prints."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(ran.stderr)
    return ran.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
