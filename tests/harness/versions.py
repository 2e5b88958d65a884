"""RabbitMQ 4.0 and 4.3 beside the installed one: Debian's other suites, each in a chroot.

Run as `python -m tests.harness.versions`, as root; it needs debootstrap and the mirror that apt
already uses. What exists is not built again. The chroots lie outside the tree, by default in
`.work/brokers/`; HOPBACK_BROKERS names another folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.harness.installation import Installation
from tests.harness.packages import install

__all__ = ["SUITES", "build", "installations", "main"]

SUITES = {"trixie": "4.0", "forky": "4.3"}
"""Debian suite → the RabbitMQ series that it had when this was written."""

_SCRIPTS = Path("/usr/share/debootstrap/scripts")
# A mirror may stand still for longer than testing's signatures last; the signature itself holds.
_APT = ("apt-get", "--quiet", "--yes", "-o", "Acquire::Check-Valid-Until=false")


def folder() -> Path:
    """Where the chroots lie."""
    default = Path(__file__).parents[2] / ".work" / "brokers"
    return Path(os.environ.get("HOPBACK_BROKERS", default))


def installations() -> dict[str, Installation]:
    """Suite → its installation, whether it is built or not."""
    return {suite: Installation(suite, folder() / suite) for suite in SUITES}


def build(suite: str) -> Installation:
    """The suite's chroot with RabbitMQ in it; made if it is missing, which takes minutes."""
    finished = folder() / suite
    if not finished.exists():
        install(["debootstrap"])
        partial = finished.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _bootstrap(suite, partial)
        _add_rabbitmq(Installation(suite, partial))
        partial.rename(finished)
    return Installation(suite, finished)


def main() -> int:
    """Build every chroot that is missing; 1 with the reason where one cannot be built."""
    for suite in SUITES:
        try:
            build(suite)
        except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
            sys.stderr.write(f"RabbitMQ of Debian {suite} is not to be had: {error}\n")
            return 1
    return 0


def _bootstrap(suite: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", suite, str(target), _mirror()]
    if not (_SCRIPTS / suite).exists():
        command.append(str(_SCRIPTS / "sid"))
    subprocess.run(command, check=True, stdout=sys.stderr)


def _add_rabbitmq(chroot: Installation) -> None:
    """Install the server; a policy keeps the package from starting it."""
    policy = chroot.root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    for name in ("resolv.conf", "hosts"):
        shutil.copy(Path("/etc") / name, chroot.root / "etc" / name)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (("update",), ("install", "--no-install-recommends", "rabbitmq-server")):
        command = chroot.command(*_APT, *step)
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)


def _mirror() -> str:
    """The mirror of Debian's main archive that apt uses here."""
    listing = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()
    for address in found:
        if address.rstrip("/").endswith("/debian"):
            return address
    raise RuntimeError(f"expected a Debian archive among apt's sources, found {sorted(set(found))}")


if __name__ == "__main__":
    raise SystemExit(main())
