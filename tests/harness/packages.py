"""The list of all Debian packages that the tests need.

`python -m tests.harness.packages PURPOSE …` installs them. make runs this before the tests, and no
test installs a package itself. Whether a package is installed is queried from dpkg and not from
PATH, because an installed compiler does not mean that the headers of a library are installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["PURPOSES", "install", "main", "missing", "packages_for"]

PURPOSES = {
    "rabbitmq": ("rabbitmq-server",),
    "postgresql": ("postgresql",),
    "browser": ("chromium",),
    "c-client": ("gcc", "libc6-dev", "librabbitmq-dev"),
    "node-client": ("nodejs", "npm"),
    # Tools for certificates and child processes, which pages and tests use.
    "commands": ("curl", "git", "openssl", "procps"),
    "cluster": ("iproute2",),
    "chroots": ("debootstrap",),
    # `unshare` and `ip` create a network for each broker.
    "peers": ("iproute2", "util-linux"),
}
"""The packages for each purpose."""

_POLICY = Path("/usr/sbin/policy-rc.d")
# Seconds. If another apt is running, wait for it.
_LOCK_S = 600


def packages_for(purposes: Sequence[str]) -> list[str]:
    """Return the packages for these purposes. Raises ValueError if a purpose is unknown."""
    unknown = sorted(set(purposes) - PURPOSES.keys())
    if unknown:
        raise ValueError(f"expected purposes among {', '.join(PURPOSES)}; got {', '.join(unknown)}")
    return [package for purpose in purposes for package in PURPOSES[purpose]]


def missing(packages: Sequence[str]) -> list[str]:
    """Return the packages that are neither installed nor provided by an installed one.

    For example, the nodejs package of another vendor provides npm, and Debian's npm can't be
    installed next to it.
    """
    query = [
        "dpkg-query",
        "--show",
        "--showformat",
        "${db:Status-Status}|${Package}, ${Provides}\n",
    ]
    listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    present = set()
    for line in listed.splitlines():
        status, _, names = line.partition("|")
        if status == "installed":
            present |= {name.split()[0] for name in names.split(",") if name.strip()}
    return [package for package in packages if package not in present]


def install(purposes: Sequence[str]) -> None:
    """Install the packages that are missing. Raises RuntimeError with a remedy if this is not
    possible.
    """
    packages = packages_for(purposes)
    if shutil.which("dpkg-query") is None:
        sys.stderr.write(
            "hopback: this system has no dpkg. The tests assume the contents of"
            f" {' '.join(packages)}\n"
        )
        return
    wanted = missing(packages)
    if not wanted:
        return
    if os.geteuid() != 0:
        raise RuntimeError(
            f"these packages are needed and missing: {' '.join(wanted)};"
            f" run `apt-get install --no-install-recommends {' '.join(wanted)}` as root"
        )
    sys.stderr.write(f"hopback: installing {' '.join(wanted)}\n")
    with _services_stay_down():
        _apt("update")
        _apt("install", "--no-install-recommends", *wanted)


def main(arguments: Sequence[str]) -> int:
    """Install the packages for the given purposes. Returns 1 if this is not possible."""
    try:
        install(arguments)
    except (RuntimeError, ValueError, OSError) as error:
        sys.stderr.write(f"hopback: {error}\n")
        return 1
    return 0


def _apt(*arguments: str) -> None:
    command = ["apt-get", "-qq", "--yes", "-o", f"DPkg::Lock::Timeout={_LOCK_S}", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"expected `{' '.join(command)}` to succeed; it printed: {(done.stdout + done.stderr)[-2000:]}"
        )


@contextmanager
def _services_stay_down() -> Iterator[None]:
    """Prevent servers from being started when they are installed. The tests start their own."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
