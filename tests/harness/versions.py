"""RabbitMQ 4.0 and 4.3 in chroots, in addition to the installed version.

They come from other Debian releases. `python -m tests.harness.versions` builds them as root with
debootstrap and the mirror that apt uses, unless they already exist. The chroots are stored in
`.work/brokers/` by default. HOPBACK_BROKERS specifies another folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.harness.chroots import build_once
from tests.harness.installation import Installation

__all__ = ["SUITES", "build", "installations", "main"]

SUITES = {"trixie": "4.0", "forky": "4.3"}
"""The RabbitMQ series of each Debian suite at the time of writing."""

# A mirror may be older than the validity period of the signatures. The signatures are still
# verified.
_APT = ("apt-get", "--quiet", "--yes", "-o", "Acquire::Check-Valid-Until=false")


def folder() -> Path:
    """Return the folder of the chroots."""
    default = Path(__file__).parents[2] / ".work" / "brokers"
    return Path(os.environ.get("HOPBACK_BROKERS", default))


def installations() -> dict[str, Installation]:
    """Return the installations by their suite. They may not have been built yet."""
    return {suite: Installation(suite, folder() / suite) for suite in SUITES}


def build(suite: str) -> Installation:
    """Return the chroot of a suite with RabbitMQ. It is built if it does not exist, which takes
    minutes.
    """
    return Installation(suite, build_once(suite, folder() / suite, complete=_add_rabbitmq))


def main() -> int:
    """Build all chroots that do not exist. Returns 1 if one of them cannot be built."""
    for suite in SUITES:
        try:
            build(suite)
        except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
            sys.stderr.write(f"RabbitMQ of Debian {suite} is not available: {error}\n")
            return 1
    return 0


def _add_rabbitmq(root: Path) -> None:
    """Install the server. A policy file prevents the package from starting it."""
    chroot = Installation("unfinished", root)
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    for name in ("resolv.conf", "hosts"):
        shutil.copy(Path("/etc") / name, root / "etc" / name)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (("update",), ("install", "--no-install-recommends", "rabbitmq-server")):
        command = chroot.command(*_APT, *step)
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
