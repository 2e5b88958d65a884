"""A cluster of three private RabbitMQ nodes, which can be killed and partitioned.

If the tests run as root, each node has its own network namespace on a bridge, and a node is
separated by disabling its link. Otherwise the nodes share the loopback interface, and a node is
separated by stopping its process with SIGSTOP. `means` describes the method. Only addresses of
these namespaces or of loopback are used.
"""

from __future__ import annotations

import http.client
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.harness.configuration import Timings
from tests.harness.installation import HOST, Installation
from tests.harness.management import ManagementFailed
from tests.harness.rabbitmq import NodeFailed, RabbitNode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["Cluster", "View", "to_start_again"]

_CONF = """\
cluster_formation.peer_discovery_backend = classic_config
cluster_partition_handling = pause_minority
vm_memory_high_watermark.relative = 0.1
net_ticktime = 10
"""
_GUARD = 'cat >/dev/null; for n in 1 2 3; do ip netns del "$0$n"; done; ip link del "$0"'
_WHOLE_S = 300.0
"""Seconds. A cluster needs ten seconds on an idle machine. With five other workers on two cores, 90
s were not enough.
"""
_BACK_S = 60.0
"""Seconds. A node that is missing for this time is restarted. Usually it returns within ten
seconds.
"""
_NOTICED_S = 60.0
"""Seconds. Nodes notice after 7.5 to 12.5 s (`net_ticktime`) that another one does not respond. On
an overloaded machine this takes longer.
"""
_NO_ANSWER = (OSError, http.client.HTTPException, ManagementFailed)


@dataclass(frozen=True, slots=True)
class View:
    """How a node sees its cluster. A node that does not respond has no view."""

    running: frozenset[str]
    partitions: frozenset[str] = frozenset()
    """The nodes to which it is connected again after both sides have continued separately."""


def to_start_again(views: Mapping[str, View | None], *, patient: bool) -> str | None:
    """Return the node that must be restarted to join the others, or None.

    If a link returns before a node has noticed that it was down, the node does not pause. Then both
    sides have continued separately and do not join again. In this case, RabbitMQ's guide recommends
    to restart one side. The node that the fewest others can see is chosen. After the timeout, any
    node that is missing is restarted.
    """
    answered = {name: view for name, view in views.items() if view is not None}
    # If only one side reports a partition, the other side may have paused and will join by itself.
    divided = [
        name
        for name, view in answered.items()
        if any(name in answered[other].partitions for other in view.partitions & answered.keys())
    ]
    return min(
        divided if patient else views,
        key=lambda name: sum(name in view.running for view in answered.values()),
        default=None,
    )


@dataclass(slots=True)
class Cluster:
    """Three nodes. `start` waits until they are a cluster, and `remove` deletes everything."""

    installation: Installation = HOST
    timings: Timings = field(default_factory=Timings)
    namespaces: bool = field(default_factory=lambda: os.geteuid() == 0 and _can_separate())
    nodes: list[RabbitNode] = field(default_factory=list)
    _name: str = field(default_factory=lambda: f"hb{secrets.token_hex(3)}")
    _guard: subprocess.Popen[bytes] | None = None
    _epmd: subprocess.Popen[bytes] | None = None
    _stopped: set[int] = field(default_factory=set)

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.remove()

    @property
    def means(self) -> str:
        """How a node is separated from the others."""
        return "network namespace, link down" if self.namespaces else "SIGSTOP"

    def start(self) -> Cluster:
        """Start all nodes at the same time and wait until they know each other."""
        try:
            self.nodes = self._in_namespaces() if self.namespaces else self._on_loopback()
            with ThreadPoolExecutor() as pool:
                list(pool.map(RabbitNode.start, self.nodes))
            self.until_whole()
        except BaseException:
            self.remove()
            raise
        return self

    def urls(self, vhost: str) -> tuple[str, ...]:
        """Return the URLs of a virtual host on all nodes. It is created if it does not exist."""
        self.nodes[0].management.create_vhost(vhost)
        return tuple(node.url + vhost for node in self.nodes)

    def until_whole(self) -> None:
        """Wait until all nodes see three running nodes. Nodes that stay away are restarted."""
        deadline = time.monotonic() + _WHOLE_S
        patience = time.monotonic() + _BACK_S
        while not _is_whole(views := {node.name: _view(node) for node in self.nodes}):
            now = time.monotonic()
            if now > deadline:
                logs = "\n".join(node.log[-4000:] for node in self.nodes)
                raise NodeFailed(f"no cluster of three after {_WHOLE_S:g} s: {views}\n{logs}")
            again = to_start_again(views, patient=now < patience)
            if again is not None:
                next(node for node in self.nodes if node.name == again).restart()
                patience = time.monotonic() + _BACK_S
            time.sleep(0.5)

    def leader_of(self, vhost: str, queue: str) -> int:
        """Return the number of the node that leads a quorum queue."""
        for node in self.nodes:
            with suppress(*_NO_ANSWER):
                found = node.management.call("GET", f"/queues/{vhost}/{queue}")
                return next(n for n, one in enumerate(self.nodes) if one.name == found["leader"])
        raise NodeFailed("no node answers")

    def cut_off(self, number: int) -> None:
        """Separate a node from the others and from its clients.

        Returns when both sides have noticed it. If the link returned earlier, the cluster would
        stay divided.
        """
        cut = self.nodes[number]
        others = [node for node in self.nodes if node is not cut]
        losses = [(node, cut, len(node.log)) for node in others]
        if self.namespaces:
            losses += [(cut, node, len(cut.log)) for node in others]
            _ip("link", "set", f"{self._name}{number + 1}", "down")
        else:
            os.kill(cut.pid, signal.SIGSTOP)  # a stopped process does not notice anything
            self._stopped.add(number)
        deadline = time.monotonic() + _NOTICED_S
        while not all(_has_given_up(*loss) for loss in losses):
            if time.monotonic() > deadline:
                raise NodeFailed(
                    f"cut off for {_NOTICED_S:g} s, and not noticed: {cut.log[-4000:]}"
                )
            time.sleep(0.5)

    def reconnect(self, number: int) -> None:
        if self.namespaces:
            _ip("link", "set", f"{self._name}{number + 1}", "up")
        else:
            os.kill(self.nodes[number].pid, signal.SIGCONT)
            self._stopped.discard(number)

    def remove(self) -> None:
        """Stop and delete everything. This can be called again."""
        for number in tuple(self._stopped):
            self.reconnect(number)
        for node in self.nodes:
            node.remove()
        self.nodes = []
        for process in (self._epmd, self._guard):
            if process is not None:
                if process.stdin is not None:
                    process.stdin.close()
                else:
                    process.kill()
                process.wait()
        self._epmd = self._guard = None

    def _in_namespaces(self) -> list[RabbitNode]:
        """Create the namespaces `…1` to `…3` on a bridge. A guard process removes them when this
        process ends.
        """
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, self._name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        net = f"10.213.{secrets.randbelow(250) + 1}"
        _ip("link", "add", self._name, "type", "bridge")
        _ip("addr", "add", f"{net}.254/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        for number in (1, 2, 3):
            self._add_namespace(number, f"{net}.{number}")
        addresses = [f"{net}.{number}" for number in (1, 2, 3)]
        return [
            RabbitNode(
                installation=self.installation,
                timings=self.timings,
                address=address,
                prefix=("ip", "netns", "exec", f"{self._name}{number}"),
                name=f"rabbit@{address}",
                cookie=self._name,
                conf=self._conf([f"rabbit@{one}" for one in addresses]),
                shared_epmd_port=4369,
            )
            for number, address in enumerate(addresses, 1)
        ]

    def _add_namespace(self, number: int, address: str) -> None:
        name = f"{self._name}{number}"
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", self._name, "up")
        inside = ("netns", "exec", name, "ip")
        _ip(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "link", "set", "lo", "up")

    def _on_loopback(self) -> list[RabbitNode]:
        names = [f"{self._name}{number}@localhost" for number in (1, 2, 3)]
        port = 20_000 + secrets.randbelow(10_000)
        self._epmd = subprocess.Popen(
            ["epmd", "-port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return [
            RabbitNode(
                installation=self.installation,
                timings=self.timings,
                name=name,
                cookie=self._name,
                conf=self._conf(names),
                epmd_port=port,
            )
            for name in names
        ]

    def _conf(self, names: list[str]) -> str:
        lines = [
            f"cluster_formation.classic_config.nodes.{number} = {name}\n"
            for number, name in enumerate(names, 1)
        ]
        return _CONF + "".join(lines)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NodeFailed(f"ip {' '.join(arguments)}: {done.stderr}")


def _can_separate() -> bool:
    """Return True if network namespaces can be created."""
    if shutil.which("ip") is None:
        return False
    name = f"hb{secrets.token_hex(3)}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except NodeFailed:
        return False
    return True


def _has_given_up(node: RabbitNode, gone: RabbitNode, since: int) -> bool:
    """Return True if the log of a node reports since then that another node is down."""
    return re.search(rf"node '?{re.escape(gone.name)}'? down", node.log[since:]) is not None


def _view(node: RabbitNode) -> View | None:
    try:
        found = node.management.call("GET", "/nodes")
    except _NO_ANSWER:
        return None
    running = frozenset(one["name"] for one in found if one.get("running"))
    partitions = (one.get("partitions", ()) for one in found if one["name"] == node.name)
    return View(running, frozenset(next(partitions, ())))


def _is_whole(views: Mapping[str, View | None]) -> bool:
    return all(view is not None and view.running == views.keys() for view in views.values())
