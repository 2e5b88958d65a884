"""A new copy of a bare Debian with separate processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.chroots import build_once
from tests.pristine import host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PROJECT", "WORK", "Root", "fresh_root"]

PROJECT = Path(__file__).resolve().parents[2]
WORK = PROJECT / ".work" / "pristine"
_BARE = ("make", "python3", "python3-venv", "git")
_POLL_S = 0.5

# Mounts and processes are in separate namespaces, which end with their first process. This shell is
# the first process: it waits for its command and survives the command's Ctrl-C.
_INIT = """
trap : INT
root=$1; shift
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" || exit 125
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm" || exit 125
while [ "$1" != -- ]; do
    mkdir -p "$root$1" && mount --bind "$1" "$root$1" && mount -o remount,bind,ro "$root$1" || exit 125
    shift
done
shift
chroot "$root" "$@"
"""


@dataclass(frozen=True, slots=True)
class Root:
    """A root with a clone of the project in `/srv/hopback`."""

    suite: str
    folder: Path

    def output(self, *command: str) -> str:
        """Return the output of a command."""
        return subprocess.run(
            self._arguments(*command),
            env=host.environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    def run(
        self, command: str, log: Path, limit_s: float, is_up: Callable[[str], bool] | None = None
    ) -> int:
        """Return the exit status of a shell command in the clone, or 124 if it exceeds the limit.

        With `is_up`, press Ctrl-C as soon as it returns true for the output.
        """
        deadline = time.monotonic() + limit_s
        with log.open("wb") as written:
            process = subprocess.Popen(
                self._arguments("sh", "-c", f"cd /srv/hopback && {command}"),
                env=host.environment(),
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    return 124
                if is_up is not None and is_up(log.read_text(errors="replace")):
                    is_up = None
                    os.killpg(process.pid, signal.SIGINT)
                time.sleep(_POLL_S)
            return process.returncode
        finally:
            process.kill()
            process.wait()

    def _arguments(self, *command: str) -> list[str]:
        separate = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
        ]
        inside = [
            "sh",
            "-c",
            _INIT,
            "init",
            str(self.folder),
            *map(str, host.folders(self.folder)),
            "--",
        ]
        # If this process is killed with -9, the processes of the root end with it.
        return ["setpriv", "--pdeathsig", "KILL", *separate, *inside, *command]


@contextmanager
def fresh_root(suite: str) -> Iterator[Root]:
    """Copy the suite's bare root, clone HEAD into it, and remove it afterwards. An older copy is
    replaced.
    """
    root = Root(suite, WORK / "roots" / suite)
    root.folder.parent.mkdir(parents=True, exist_ok=True)
    with root.folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may use this root: wait until it ends
        bare = build_once(suite, WORK / "bare" / suite, _BARE)
        shutil.rmtree(root.folder, ignore_errors=True)
        try:
            subprocess.run(["cp", "-a", "--reflink=auto", str(bare), str(root.folder)], check=True)
            host.pass_in(root.folder)
            clone = ["git", "clone", "--quiet", "--no-hardlinks", str(PROJECT)]
            subprocess.run([*clone, str(root.folder / "srv/hopback")], check=True)
            yield root
        finally:
            shutil.rmtree(root.folder, ignore_errors=True)
