"""A private RabbitMQ node with its own cookie, epmd, ports and folders.

All files are in a temporary folder. A guard process waits on a pipe that this process keeps open.
When this process ends, even by SIGKILL, the guard kills the node and deletes the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.configuration import Timings, write_files
from tests.harness.installation import HOST, Installation
from tests.harness.management import Management

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["NodeFailed", "RabbitNode"]

_START_SECONDS = 90.0
_STOP_SECONDS = 30.0
_GUARD = """
cat >/dev/null
for group in $(cat "$0/groups" 2>/dev/null); do kill -KILL "-$group" 2>/dev/null; done
rm -rf "$0"
"""


class NodeFailed(RuntimeError):
    """A private node has failed. The message contains the end of its log."""


@dataclass(slots=True)
class RabbitNode:
    """A private RabbitMQ node on the loopback interface.

    `start` waits until the node responds to AMQP and HTTP. `stop` stops it in order and keeps its
    data. `kill` is like a power failure. `restart` starts it again, and `remove` deletes
    everything.
    """

    installation: Installation = HOST
    plugins: tuple[str, ...] = ("rabbitmq_management",)
    timings: Timings = field(default_factory=Timings)
    conf: str = ""
    """Additional lines for `rabbitmq.conf`."""
    lifeline: int | None = None
    """The node is stopped at the end of file of this descriptor. By default, it is stopped when
    this process ends.
    """
    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    """A prefix for the commands of all programs. `ip netns exec …` gives the node its own network.
    """
    cookie: str = ""
    """The Erlang cookie, which must be the same for all nodes of a cluster. By default, it is
    unique.
    """
    epmd_port: int = 0
    """The port of an epmd that is already running. By default, the node starts its own."""
    shared_epmd_port: int = 0
    """The port of the node's epmd if other nodes of the cluster have to know it."""
    amqp_port: int = 0
    """By default, a free port is used. This also applies to the management port."""
    management_port: int = 0
    name: str = ""
    inside: Path = Path("/nonexistent")
    _environment: dict[str, str] = field(default_factory=dict)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _guard: subprocess.Popen[bytes] | None = None
    _held: int | None = None

    def __enter__(self) -> RabbitNode:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.remove()

    @property
    def folder(self) -> Path:
        """The folder of the node, as seen from this process."""
        return self.installation.outside(self.inside)

    @property
    def url(self) -> str:
        """The `amqp://` URL of the default virtual host."""
        return f"amqp://guest:guest@{self.address}:{self.amqp_port}/"

    @property
    def management_url(self) -> str:
        """The URL of the HTTP API with credentials."""
        return f"http://guest:guest@{self.address}:{self.management_port}"

    @property
    def management(self) -> Management:
        """A client for the HTTP API."""
        return Management(self.management_url)

    @property
    def pid(self) -> int:
        """The process id of the server, which is read from its pid file."""
        return int((self.folder / "pid").read_text())

    @property
    def log(self) -> str:
        """The log of the server."""
        return "".join(
            path.read_text(errors="replace") for path in sorted((self.folder / "log").glob("*.log"))
        )

    def start(self) -> RabbitNode:
        """Start the node and wait until it responds."""
        server = self.installation.script("rabbitmq-server")
        if not self._environment:
            self._prepare()
        try:
            if not self.epmd_port:
                self._spawn("epmd", "-port", self._environment["ERL_EPMD_PORT"])
            self._spawn(server)
            self._await_answer()
        except BaseException:
            self.remove()
            raise
        return self

    def stop(self) -> None:
        """Stop the node in order and keep its data. This takes up to 30 s."""
        if not self._processes:
            return
        os.kill(self.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[-1].wait(_STOP_SECONDS)
        self._end_processes()

    def kill(self) -> None:
        """Kill the node with SIGKILL. Only data that has already been written to the disk is kept."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        self._end_processes()
        _await_end(pid)

    def restart(self) -> None:
        """Stop the node in order if it is running, and start it again."""
        self.stop()
        self.start()

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl` and return its output. Raises NodeFailed if it fails."""
        command = self.installation.command(
            self.installation.script("rabbitmqctl"), "--quiet", *arguments
        )
        done = subprocess.run(
            [*self.prefix, *command],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            raise NodeFailed(
                f"rabbitmqctl {' '.join(arguments)} failed: {done.stderr or done.stdout}"
            )
        return done.stdout

    def vhost_url(self, vhost: str) -> str:
        """Return the URL of a virtual host. It is created if it does not exist."""
        self.management.create_vhost(vhost)
        return self.url + vhost

    def hand_over(self) -> None:
        """Let the guard process stop the node at the end of its lifeline, instead of this process."""
        atexit.unregister(self.remove)
        for process in (*self._processes, self._guard):
            if process is not None:
                process.returncode = 0  # this process does not wait for it
        self._processes.clear()
        self._guard = None

    def remove(self) -> None:
        """Kill the node and delete its files. This can be called again."""
        atexit.unregister(self.remove)
        self._end_processes()
        if self._environment:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._held is not None:
            os.close(self._held)
            self._held = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            self._guard = None

    def _prepare(self) -> None:
        """Choose names and ports, write the files and start the guard process."""
        shared = self.installation.outside(Path(tempfile.gettempdir()))
        shared.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="hopback-rabbitmq-", dir=shared))
        self.inside = Path("/") / made.relative_to(self.installation.root)
        self.name = self.name or f"{made.name.replace('_', 'x')}@localhost"
        amqp_port, management_port, epmd_port, dist_port = _free_ports(4)
        self.amqp_port = self.amqp_port or amqp_port
        self.management_port = self.management_port or management_port
        self._environment = write_files(
            self, self.epmd_port or self.shared_epmd_port or epmd_port, dist_port
        )
        self._set_guard()
        atexit.register(self.remove)

    def _set_guard(self) -> None:
        reading = self.lifeline
        if reading is None:
            reading, self._held = os.pipe()
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, str(self.folder)], stdin=reading, start_new_session=True
        )
        if self.lifeline is None:
            os.close(reading)

    def _spawn(self, program: str, *arguments: str) -> None:
        """Start a program of the node in its own process group, which is registered for the guard
        process.
        """
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                [*self.prefix, *self.installation.command(program, *arguments)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )
        self._processes.append(process)
        with (self.folder / "groups").open("a") as groups:
            groups.write(f"{process.pid}\n")

    def _await_answer(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._processes[-1].poll() is not None:
                raise NodeFailed(f"{self.name} ended while starting:\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise NodeFailed(f"{self.name} did not answer in time:\n{self._last_words()}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        """Return True if the node responds to AMQP, has written its pid, and responds to HTTP if
        this is enabled.
        """
        if not ((self.folder / "pid").exists() and _greets(self.address, self.amqp_port)):
            return False
        return "rabbitmq_management" not in self.plugins or self.management.is_up()

    def _last_words(self) -> str:
        return ((self.folder / "output").read_text(errors="replace") + self.log)[-4000:]

    def _end_processes(self) -> None:
        """Kill all processes of the node, including helpers and epmd."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()
        if self._environment:
            (self.folder / "groups").unlink(missing_ok=True)
            (self.folder / "pid").unlink(missing_ok=True)


def _await_end(pid: int) -> None:
    """Wait until a process has ended.

    It is not a child of this process, and a large process needs some time to exit.
    """
    deadline = time.monotonic() + _STOP_SECONDS
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            if time.monotonic() > deadline:
                raise NodeFailed(f"process {pid} outlived kill -9 by {_STOP_SECONDS:g} s")
            time.sleep(0.01)


def _free_ports(count: int) -> list[int]:
    """Return several ports that are free at this time."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _greets(address: str, port: int) -> bool:
    """Return True if a server on this port starts an AMQP 0-9-1 handshake."""
    try:
        with socket.create_connection((address, port), timeout=2) as line:
            line.sendall(b"AMQP\x00\x00\x09\x01")
            return line.recv(1) == b"\x01"
    except OSError:
        return False
