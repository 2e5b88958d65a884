"""A machine that nobody has prepared: a fresh copy of a bare Debian, with processes of its own."""

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

# Mounts and processes live in namespaces of their own: whatever happens, all of them end with the
# first process. That one is this shell: it waits for its command, and survives the command's Ctrl-C.
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
        """What a command prints."""
        return subprocess.run(
            self._line(*command), env=host.environment(), capture_output=True, text=True, check=True
        ).stdout.strip()

    def run(
        self, command: str, log: Path, limit_s: float, is_up: Callable[[str], bool] | None = None
    ) -> int:
        """The exit status of a shell command in the clone; 124 when it takes longer than the limit.

        With `is_up`, Ctrl-C is pressed as soon as that holds for what was printed.
        """
        deadline = time.monotonic() + limit_s
        with log.open("wb") as written:
            process = subprocess.Popen(
                self._line("sh", "-c", f"cd /srv/hopback && {command}"),
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

    def _line(self, *command: str) -> list[str]:
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
        # Killed with -9, we take the root's processes with us.
        return ["setpriv", "--pdeathsig", "KILL", *separate, *inside, *command]


@contextmanager
def fresh_root(suite: str) -> Iterator[Root]:
    """A copy of the suite's bare root with a clone of HEAD; gone afterwards, as is any older one."""
    root = Root(suite, WORK / "roots" / suite)
    root.folder.parent.mkdir(parents=True, exist_ok=True)
    with root.folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be at work here: wait for its end
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
