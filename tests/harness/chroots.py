"""Create Debian chroots of other releases with debootstrap, from the mirror that apt uses on this
machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["build_once"]

_SCRIPTS = Path("/usr/share/debootstrap/scripts")


def build_once(
    suite: str,
    finished: Path,
    include: Sequence[str] = (),
    complete: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Return a minimal Debian system with the given packages.

    It is built if it does not exist, which takes minutes. Its folder is renamed when it is
    complete, so an incomplete one is never used.
    """
    if not finished.exists():
        partial = finished.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--variant=minbase"]
        if include:
            command.append(f"--include={','.join(include)}")
        command += [suite, str(partial), _mirror()]
        if not (_SCRIPTS / suite).exists():
            command.append(str(_SCRIPTS / "sid"))
        subprocess.run(command, check=True, stdout=sys.stderr)
        complete(partial)
        partial.rename(finished)
    return finished


def _mirror() -> str:
    """Return the mirror that apt uses for Debian."""
    listing = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()
    for address in found:
        if address.rstrip("/").endswith("/debian"):
            return address
    raise RuntimeError(f"expected a Debian archive among apt's sources, found {sorted(set(found))}")
