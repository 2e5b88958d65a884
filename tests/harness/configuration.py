"""The configuration files and environment variables of a private node."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.rabbitmq import RabbitNode

__all__ = ["QUICK_DEAD_LETTERS_MS", "Timings", "write_files"]

QUICK_DEAD_LETTERS_MS = 2_000
"""A value for `Timings.dead_letter_retry_ms`, for tests that need the next attempt."""

_CONF = """\
loopback_users = none
management.tcp.ip = {address}
management.tcp.port = {management_port}
collect_statistics_interval = {statistics_ms}
consumer_timeout = {consumer_timeout_ms}
disk_free_limit.absolute = 50MB
log.file.level = info
raft.wal_max_size_bytes = 67108864
"""
_ADVANCED = """\
[{{rabbit, [{{dead_letter_worker_publisher_confirm_timeout, {dead_letter_retry_ms}}},
           {{channel_tick_interval, {tick_ms}}},
           {{quorum_tick_interval, {tick_ms}}}]}}].
"""


@dataclass(frozen=True, slots=True)
class Timings:
    """The timeouts of a node. They are shorter than in production unless this would hide a problem.

    The time between two attempts of at-least-once dead-lettering is the same as in production, so
    that no test depends on a shorter one.
    """

    consumer_timeout_ms: int = 120_000
    dead_letter_retry_ms: int = 180_000
    tick_ms: int = 500
    statistics_ms: int = 500


def write_files(node: RabbitNode, epmd_port: int, dist_port: int) -> dict[str, str]:
    """Write the cookie and the configuration of a node and return its environment."""
    for name in ("home", "mnesia", "log"):
        (node.folder / name).mkdir()
    _write_cookie(node.folder / "home" / ".erlang.cookie", node.cookie or node.name)
    timings = {name: getattr(node.timings, name) for name in Timings.__slots__}
    conf = _CONF.format(address=node.address, management_port=node.management_port, **timings)
    conf += node.conf
    (node.folder / "rabbitmq.conf").write_text(conf)
    (node.folder / "advanced.config").write_text(_ADVANCED.format(**timings))
    (node.folder / "enabled_plugins").write_text(f"[{','.join(node.plugins)}].\n")
    (node.folder / "env.conf").write_text("")
    _link_applications(node)
    return _environment(node, epmd_port, dist_port)


def _link_applications(node: RabbitNode) -> None:
    """Create a plugin folder that only contains the applications that this node needs.

    Erlang searches for each of a thousand modules in the folders of all seventy applications. With
    fewer folders, it takes a quarter less work to start a node.
    """
    (installed,) = node.installation.root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins")
    folders = {one.name.rpartition("-")[0]: one for one in installed.iterdir() if one.is_dir()}
    needed, wanted = set[str](), {"rabbit", *node.plugins}
    while wanted:
        name = wanted.pop()
        needed.add(name)
        described = (folders[name] / "ebin" / f"{name}.app").read_text()
        listed = re.findall(r"{(?:included_)?applications,\s*\[([^]]*)\]", described)
        uses = {one.strip(" \n\t'") for text in listed for one in text.split(",")}
        wanted |= (uses & folders.keys()) - needed
    (node.folder / "plugins").mkdir()
    for name in needed:
        inside = "/" / folders[name].relative_to(node.installation.root)
        (node.folder / "plugins" / folders[name].name).symlink_to(inside)


def _write_cookie(path: Path, secret: str) -> None:
    path.write_text(secret.upper())
    path.chmod(0o400)


def _environment(node: RabbitNode, epmd_port: int, dist_port: int) -> dict[str, str]:
    """Return all variables that the scripts read. No variables of this process are inherited."""
    inside = node.inside
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(inside / "home"),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": node.address,
        "RABBITMQ_NODENAME": node.name,
        "RABBITMQ_USE_LONGNAME": str("." in node.name.partition("@")[2]).lower(),
        "RABBITMQ_NODE_IP_ADDRESS": node.address,
        "RABBITMQ_NODE_PORT": str(node.amqp_port),
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_MNESIA_BASE": str(inside / "mnesia"),
        "RABBITMQ_LOG_BASE": str(inside / "log"),
        "RABBITMQ_PID_FILE": str(inside / "pid"),
        "RABBITMQ_PLUGINS_DIR": str(inside / "plugins"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(inside / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(inside / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(inside / "advanced.config"),
        "RABBITMQ_FEATURE_FLAGS_FILE": str(inside / "feature_flags"),
        "RABBITMQ_CONF_ENV_FILE": str(inside / "env.conf"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            f"+S 2:2 -kernel inet_dist_use_interface {{{node.address.replace('.', ',')}}}"
        ),
    }
