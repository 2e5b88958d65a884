"""Check the pinned packages for known vulnerabilities: `make audit`. This needs network access.

The exit status is 0 if there are none, 1 if there are some, and 2 if the database cannot be
reached.
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
    """Run pip-audit and report the result, or why it has failed."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    wanted = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "pip-audit"]
    if subprocess.run([str(python), *wanted]).returncode:
        return report_failure("pip could not install pip-audit (its message is above)")
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
        packages = json.loads(ran.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        lines = ran.stderr.strip().splitlines() or ["no output"]
        return report_failure("pip-audit could not reach its database: " + lines[-1][:500])
    return report(packages)


def report(packages):
    """Print the known vulnerabilities. Returns 1 if there are any."""
    skipped = [one for one in packages if "skip_reason" in one]
    known = [(one, each) for one in packages for each in one.get("vulns", ())]
    for one, each in known:
        fixed = ", ".join(each["fix_versions"]) or "no version"
        print(one["name"], one["version"], each["id"], "fixed in " + fixed)
    if skipped:
        count = str(len(skipped)) + " of " + str(len(packages)) + " packages"
        reason = skipped[0]["name"] + ": " + skipped[0]["skip_reason"]
        status = report_failure(
            "pip-audit could not reach its database for " + count + " (" + reason + ")"
        )
        return 1 if known else status
    print(len(packages), "pinned packages,", len(known), "known vulnerabilities")
    return int(bool(known))


def report_failure(reason):
    """Print the reason and return 2."""
    print("hopback: " + reason, file=sys.stderr)
    print(
        "hopback: the packages were not checked; try again where the database can be reached",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
