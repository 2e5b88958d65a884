"""Health checks of the management API, those of RabbitMQ that one node can answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.broker.server.api_caller import Missing
from hopback.broker.server.json_values import NODE

if TYPE_CHECKING:
    from hopback.broker.server.house import House

__all__ = ["alarms", "check"]

_Object: TypeAlias = dict[str, Any]
_OK: _Object = {"status": "ok"}
_ONE_NODE = {**_OK, "reason": "single node cluster"}


def check(house: House, path: list[str]) -> _Object:
    """The answer, whose `status` is `ok` or `failed`; `Missing` for a check that there is not."""
    version = (house.settings.version.major, house.settings.version.minor)
    match path:
        case ["healthchecks", "node", *name] if name in ([], [NODE]):
            words = f"resource alarm(s) in effect:[{{resource_limit,memory,'{NODE}'}}]"
            return {"status": "failed", "reason": words} if house.blocked else _OK
        case ["health", "checks", "alarms"]:
            return alarms(house)
        case ["health", "checks", "local-alarms"]:
            return alarms(house, "on the node")
        case ["health", "checks", "node-is-quorum-critical"]:
            return _ONE_NODE
        case ["health", "checks", "node-is-mirror-sync-critical"] if version < (4, 0):
            return _ONE_NODE
        case ["health", "checks", "virtual-hosts"]:
            return _OK
        case ["health", "checks", "certificate-expiration", _, _]:
            return _OK
        case ["health", "checks", "port-listener", port]:
            return _port(house, port)
        case ["health", "checks", "protocol-listener", protocol]:
            return _protocol(house, protocol, several=version >= (4, 3))
        case [
            "health",
            "checks",
            ("ready-to-serve-clients" | "is-in-service" | "below-node-connection-limit"),
        ] if version >= (4, 3):
            return _OK
    raise Missing


def alarms(house: House, where: str = "in the cluster") -> _Object:
    """Whether an alarm stands, and which."""
    if not house.blocked:
        return _OK
    alarm = {"node": NODE, "resource": "memory"}
    return {
        "status": "failed",
        "reason": f"There are alarms in effect {where}",
        "alarms": [alarm],
    }


def _port(house: House, asked: str) -> _Object:
    if not asked.isdecimal() or len(asked) > 5:
        raise ValueError("Invalid port")
    port, ports = int(asked), list(house.ports.values())
    if port in ports:
        return {**_OK, "port": port}
    return {"status": "failed", "reason": "No active listener", "missing": port, "ports": ports}


def _protocol(house: House, asked: str, *, several: bool) -> _Object:
    """From 4.3 on several may be asked for, separated by commas, and each must be there."""
    wanted, known = asked.split(",") if several else [asked], list(house.ports)
    missing = [each for each in wanted if each not in known]
    if not missing:
        return {**_OK, "protocols": known} if several else {**_OK, "protocol": asked}
    return {
        "status": "failed",
        "reason": "No active listener",
        "missing": missing if several else asked,
        "protocols": known,
    }
