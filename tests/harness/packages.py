"""Install the Debian packages that the tests need, where that is allowed.

Run as `python -m tests.harness.packages rabbitmq-server …`. Packages that are there already cost
nothing. Where packages are missing and cannot be installed, the exit status is 1 and the text
says what to do.
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

__all__ = ["install", "main", "missing"]

_POLICY = Path("/usr/sbin/policy-rc.d")


def missing(packages: Sequence[str]) -> list[str]:
    """Those of the packages that are not installed."""
    return [package for package in packages if not _is_installed(package)]


def install(packages: Sequence[str]) -> None:
    """Install what is missing; RuntimeError says what to do where that is not possible."""
    wanted = missing(packages)
    if not wanted:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise RuntimeError(
            f"these packages are needed and missing: {' '.join(wanted)};"
            f" run `apt-get install {' '.join(wanted)}` as root, or install them your system's way"
        )
    with _services_stay_down():
        _apt("update")
        _apt("install", "--no-install-recommends", *wanted)


def main(arguments: Sequence[str]) -> int:
    """Install the packages named on the command line."""
    try:
        install(arguments)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _is_installed(package: str) -> bool:
    if shutil.which("dpkg-query") is None:
        return False
    query = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}", package]
    return subprocess.run(query, capture_output=True, check=False).stdout == b"installed"


def _apt(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "--quiet", "--yes", *arguments], env=environment, check=True)


@contextmanager
def _services_stay_down() -> Iterator[None]:
    """Keep a freshly installed server from starting: tests start nodes of their own."""
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
