"""A private PostgreSQL server for tests with its own data folder and port. It is removed at the
end.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

__all__ = ["PostgresFailed", "PostgresNode"]

_MISSING = (
    "the tests need PostgreSQL and found none. As root run "
    "`python -m tests.harness.packages postgresql`, or install it your system's way"
)
_ACCOUNTS = ("postgres", "nobody")
_GUARD = """
cat >/dev/null
server=$(head -n 1 "$0/data/postmaster.pid")
kill -QUIT "$server"
while kill -0 "$server" 2>/dev/null; do sleep 0.1; done
rm -rf "$0"
"""


class PostgresFailed(RuntimeError):
    """The server could not be started. The message contains the reason."""


class PostgresNode:
    """A server on a free port of the loopback interface. All clients of this port are trusted."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hopback-postgres-"))
        self._data = self._folder / "data"
        self._programs = _programs()
        self.port = _free_port()
        atexit.register(self.remove)

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database for Hopback."""
        return f"postgresql://hopback@127.0.0.1:{self.port}/{database}"

    def start(self) -> PostgresNode:
        """Create the data folder if it does not exist, start the server and wait until it responds."""
        if not self._data.exists():
            self._folder.chmod(0o755)
            self._data.mkdir()
            _give_to_server(self._data)
            self._run(
                "initdb",
                "-D",
                self._data,
                "-U",
                "hopback",
                "-A",
                "trust",
                "--no-sync",
                "-E",
                "UTF8",
            )
        options = (
            f"-p {self.port} -k {self._data} -c listen_addresses=127.0.0.1 -c fsync=off"
            " -c max_connections=300"  # all tests of all workers may have a connection pool
        )
        self._run(
            "pg_ctl", "-D", self._data, "-l", self._data / "log", "-w", "-o", options, "start"
        )
        return self

    def stop(self, mode: str = "fast") -> None:
        """Stop the server. The mode `immediate` is the same as a crash."""
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "stop")

    def restart(self, mode: str = "fast") -> None:
        """Stop and start the server."""
        self.stop(mode)
        self.start()

    def hand_over(self, lifeline: int) -> None:
        """Let a guard process stop the server at the end of file of a descriptor, instead of this
        process.
        """
        atexit.unregister(self.remove)
        guard = subprocess.Popen(
            ["sh", "-c", _GUARD, str(self._folder)], stdin=lifeline, start_new_session=True
        )
        guard.returncode = 0  # this process does not wait for it

    def remove(self) -> None:
        """Stop the server and delete its files. This can be called again."""
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: object) -> None:
        """Run a program of PostgreSQL. If the tests run as root, it uses the account of the server."""
        command = [str(self._programs / program), *map(str, arguments)]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={_account()}", "--clear-groups", *command]
        # Write the output to a file, because the server would keep a pipe open forever.
        with (self._folder / "output").open("w+") as output:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, cwd="/", check=False
            )
            if done.returncode:
                output.seek(0)
                raise PostgresFailed(f"{program} ended with {done.returncode}: {output.read()}")


def _programs() -> Path:
    """Return the folder with the programs of the newest PostgreSQL."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version)
    if found:
        return found[-1].parent
    elsewhere = shutil.which("initdb")
    if elsewhere is None:
        raise PostgresFailed(_MISSING)
    return Path(elsewhere).resolve().parent


def _version(path: Path) -> float:
    name = path.parent.parent.name
    return float(name) if name.replace(".", "", 1).isdigit() else 0.0


def _account() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(account for account in _ACCOUNTS if account in known)


def _give_to_server(folder: Path) -> None:
    """Give the folder to another account if the tests run as root. PostgreSQL refuses to run as
    root.
    """
    if os.geteuid() == 0:
        shutil.chown(folder, _account())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
