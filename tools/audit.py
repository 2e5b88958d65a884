"""Ask for known vulnerabilities of what is pinned: `make audit`. Needs the network.

The exit status is 0 if none is known, 1 if some are, and 2 if nobody could be asked: then nothing is known.
"""

import json
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".work" / "audit"
PINS = sorted((ROOT / "tools" / "pins").glob("*.txt"))


def main():
    """Ask, and say what was answered or why nothing was."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    wanted = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "pip-audit"]
    if subprocess.run([str(python), *wanted]).returncode:
        return unanswered("pip could not install pip-audit (its message is above)")
    command = [
        str(python),
        "-m",
        "pip_audit",
        "--disable-pip",
        "--require-hashes",
        "--format",
        "json",
    ]
    for path in PINS:
        command += ["-r", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    try:
        answered = json.loads(ran.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        said = ran.stderr.strip().splitlines() or ["nothing"]
        return unanswered("pip-audit could not reach its database; it said: " + said[-1][:500])
    return told(answered)


def told(answered):
    """Print what is known; 1 if something is."""
    skipped = [one for one in answered if "skip_reason" in one]
    known = [(one, each) for one in answered for each in one.get("vulns", ())]
    for one, each in known:
        fixed = ", ".join(each["fix_versions"]) or "no version"
        print(one["name"], one["version"], each["id"], "fixed in " + fixed)
    if skipped:
        count = str(len(skipped)) + " of " + str(len(answered)) + " packages"
        why = skipped[0]["name"] + ": " + skipped[0]["skip_reason"]
        status = unanswered(
            "pip-audit could not reach its database for " + count + " (" + why + ")"
        )
        return 1 if known else status
    print(len(answered), "pinned packages,", len(known), "known vulnerabilities")
    return int(bool(known))


def unanswered(reason):
    """Say that this is no verdict."""
    print("hopback: " + reason, file=sys.stderr)
    print(
        "hopback: this is no verdict; try again where the database can be reached", file=sys.stderr
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
