"""The management HTTP API, as far as tools use it, and the clock.

GET  /api/overview, /api/whoami, /api/nodes, /api/vhosts, /api/users, /api/permissions,
     /api/topic-permissions, /api/feature-flags, /api/cluster-name, /api/aliveness-test/{vhost}
GET  /api/health/checks/…, /api/healthchecks/node[/{name}]
POST /api/users/bulk-delete
GET  /api/queues, /api/exchanges, /api/bindings, /api/policies, /api/operator-policies,
     /api/connections, /api/channels, /api/consumers, each also with /{vhost}, and each by its name
GET, POST, DELETE  /api/bindings/{vhost}/e/{exchange}/{q|e}/{name}[/{key}]
POST         /api/exchanges/{vhost}/{name}/publish, /api/queues/{vhost}/{name}/get
DELETE       /api/connections/{name}, /api/connections/username/{user}
PUT          /api/cluster-name
PUT, DELETE  /api/queues/{vhost}/{name}, /api/exchanges/{vhost}/{name},
             /api/policies/{vhost}/{name}, /api/operator-policies/{vhost}/{name},
             /api/vhosts/{name}, /api/users/{name},
             /api/permissions/{vhost}/{user}, /api/topic-permissions/{vhost}/{user}
DELETE       /api/queues/{vhost}/{name}/contents
GET, POST    /api/definitions, /api/definitions/{vhost}
GET  /clock                     {"clock": "virtual", "now": …, "next_deadline": …}
POST /clock/advance             {"seconds": 1800}
GET, PUT /alarm                 {"memory": true}
"""

from __future__ import annotations

import json
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qs, quote, unquote, urlsplit

from hopback.broker.embedded.refusal import Refusal
from hopback.broker.embedded.rights import DEFAULT_EXCHANGE
from hopback.broker.server import (
    api_changes,
    api_objects,
    api_users,
)
from hopback.broker.server.api_users import NODE, Caller, Denied, Missing, VhostAccess
from hopback.endpoint import Request, Response, is_loopback
from hopback.errors import InvalidTopology
from hopback.topology.policy_pattern import pattern_flaw, pattern_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hopback.broker.embedded.node import Node
    from hopback.broker.server.served import ServedBroker
    from hopback.broker.server.time_travel import ServerTime
    from hopback.version import BrokerVersion


_Object: TypeAlias = dict[str, Any]
_OK: _Object = {"status": "ok"}
_ONE_NODE = {**_OK, "reason": "single node cluster"}


def health(broker: ServedBroker, path: list[str]) -> _Object:
    """Run a health check. The `status` of the result is `ok` or `failed`. Raises `Missing` for an
    unknown check.
    """
    version = (broker.settings.version.major, broker.settings.version.minor)
    match path:
        case ["healthchecks", "node", *name] if name in ([], [NODE]):
            words = f"resource alarm(s) in effect:[{{resource_limit,memory,'{NODE}'}}]"
            return {"status": "failed", "reason": words} if broker.blocked else _OK
        case ["health", "checks", "alarms"]:
            return alarms(broker)
        case ["health", "checks", "local-alarms"]:
            return alarms(broker, "on the node")
        case ["health", "checks", "node-is-quorum-critical"]:
            return _ONE_NODE
        case ["health", "checks", "node-is-mirror-sync-critical"] if version < (4, 0):
            return _ONE_NODE
        case ["health", "checks", "virtual-hosts"]:
            return _OK
        case ["health", "checks", "certificate-expiration", _, _]:
            return _OK
        case ["health", "checks", "port-listener", port]:
            return _port(broker, port)
        case ["health", "checks", "protocol-listener", protocol]:
            return _protocol(broker, protocol, several=version >= (4, 3))
        case [
            "health",
            "checks",
            ("ready-to-serve-clients" | "is-in-service" | "below-node-connection-limit"),
        ] if version >= (4, 3):
            return _OK
    raise Missing


def alarms(broker: ServedBroker, where: str = "in the cluster") -> _Object:
    """Check for alarms."""
    if not broker.blocked:
        return _OK
    alarm = {"node": NODE, "resource": "memory"}
    return {
        "status": "failed",
        "reason": f"There are alarms in effect {where}",
        "alarms": [alarm],
    }


def _port(broker: ServedBroker, asked: str) -> _Object:
    if not asked.isdecimal() or len(asked) > 5:
        raise ValueError("Invalid port")
    port, ports = int(asked), list(broker.ports.values())
    if port in ports:
        return {**_OK, "port": port}
    return {"status": "failed", "reason": "No active listener", "missing": port, "ports": ports}


def _protocol(broker: ServedBroker, asked: str, *, several: bool) -> _Object:
    """Check for listeners. Since 4.3, there may be several protocols, separated by commas."""
    wanted, known = asked.split(",") if several else [asked], list(broker.ports)
    missing = [each for each in wanted if each not in known]
    if not missing:
        return {**_OK, "protocols": known} if several else {**_OK, "protocol": asked}
    return {
        "status": "failed",
        "reason": "No active listener",
        "missing": missing if several else asked,
        "protocols": known,
    }


_MOST_PER_PAGE = 500
"""The same limit as in RabbitMQ."""


class BadPage(ValueError):
    """Raised when a page does not exist. `error` is the error code of RabbitMQ."""

    def __init__(self, error: str, reason: str) -> None:
        super().__init__(reason)
        self.error = error


def page_of(entries: list[dict[str, Any]], request: Request, version: BrokerVersion) -> object:
    """Return all entries, or a page of the ones with a matching name.

    As in RabbitMQ, entries are sorted by name, and names are only filtered if a page is requested.
    """
    asked = _query_of(request)
    if "page" not in asked:
        return entries
    entries = sort_entries(entries, asked)
    number, size = _number(asked["page"]), _number(asked.get("page_size", "100"))
    if number < 1 or not 1 <= size <= _MOST_PER_PAGE:
        told = str(size) if "page_size" in asked else "undefined"
        words = f"Invalid pagination parameters: page number {number}, page size {told}"
        raise BadPage("invalid_pagination_parameters", words)
    matches = _filter(asked, version)
    found = [each for each in entries if matches(str(each["name"]))] if matches else entries
    pages = -(-len(found) // size)
    if number > max(1, pages):
        words = f"Page out of range, page: {number} page size: {size}, len: {len(found)}"
        raise BadPage("page_out_of_range", words)
    items = found[(number - 1) * size : number * size]
    return {
        "filtered_count": len(found),
        "item_count": len(items),
        "items": items,
        "page": number,
        "page_count": pages,
        "page_size": size,
        "total_count": len(entries),
    }


_ORDER = (
    "vhost", "name", "source", "destination", "routing_key", "properties_key", "user", "exchange",
)  # fmt: skip
"""The fields by which RabbitMQ sorts its lists, if they are present."""


def _query_of(request: Request) -> dict[str, str]:
    parsed = parse_qs(request.query, keep_blank_values=True)
    return {key: values[-1] for key, values in parsed.items()}


def sort_entries(entries: list[dict[str, Any]], asked: dict[str, str]) -> list[dict[str, Any]]:
    """Sort by a field, or by name."""
    keys = [key for key in _ORDER if entries and key in entries[0]]
    found = sorted(entries, key=lambda each: [_sortable(each.get(key)) for key in keys])
    wanted = asked.get("sort")
    if wanted is not None:
        found.sort(key=lambda each: _sortable(_inside(each, wanted)))
        if asked.get("sort_reverse") == "true":
            found.reverse()
    return found


def _inside(entry: dict[str, Any], path: str) -> object:
    value: Any = entry
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _sortable(value: object) -> tuple[int, Any]:
    """Return a sort key that works for all types: numbers first, then strings, then all other
    values.
    """
    if isinstance(value, int | float):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, _dumps(value))


def _columns(found: object, asked: str) -> object:
    """Select columns. `a.b` selects all of `a`. An entry that has none of the columns becomes `[]`."""
    names = {name.partition(".")[0] for name in asked.split(",")}
    if isinstance(found, list):
        return [_columns(each, asked) for each in found]
    if not isinstance(found, dict):
        return found
    if "items" in found and "page_count" in found:
        return {**found, "items": _columns(found["items"], asked)}
    return {name: value for name, value in found.items() if name in names} or []


def _filter(asked: dict[str, str], version: BrokerVersion) -> Callable[[str], object] | None:
    """Return a case-insensitive filter for names, or None if all names match."""
    wanted = asked.get("name", "")
    if not wanted:
        return None
    if asked.get("use_regex") != "true":
        return lambda name: wanted.lower() in name.lower()
    pattern = f"(?i){wanted}"
    if pattern_flaw(pattern) is not None and (version.major, version.minor) < (4, 3):
        raise BadPage("bad_request", "Pagination parameters are invalid")
    return lambda name: pattern_matches(pattern, name)


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise BadPage("bad_request", "Pagination parameters are invalid")
    return int(text)


# maximum depth, much more than arguments need. The limit protects functions that recurse.
_DEEPEST = 100


_FEATURES: tuple[list[str], ...] = ([], ["used"])
"""Part of `deprecated-features`: all features, and those in use. There are none."""


class Api:
    def __init__(self, broker: ServedBroker, time: ServerTime) -> None:
        self._broker = broker
        self._time = time
        self._version = broker.settings.version

    async def __call__(self, request: Request) -> Response:
        if not _is_ours(request, local=is_loopback(self._broker.settings.host)):
            return _said(HTTPStatus.FORBIDDEN, "forbidden", "requests from other sites are refused")
        user = self._broker.users.basic(request.headers.get("authorization", ""), request.peer)
        if user is None:
            reason = (
                "Not_Authorized" if self._broker.node.profile.version.major >= 4 else "Login failed"
            )
            body = _dumps({"error": "not_authorized", "reason": reason}).encode()
            headers = {"WWW-Authenticate": 'Basic realm="hopback broker"'}
            return Response(HTTPStatus.UNAUTHORIZED, body, headers=headers)
        try:
            return await self._answer(request, Caller(self._broker, user))
        except Missing as missing:
            error = str(missing) or "Object Not Found"
            return _said(HTTPStatus.NOT_FOUND, error, "Not Found")
        except Denied as denied:
            return _said(HTTPStatus.UNAUTHORIZED, "not_authorised", str(denied))
        except BadPage as bad:
            return _said(HTTPStatus.BAD_REQUEST, bad.error, str(bad))
        except (ValueError, InvalidTopology) as error:
            return _said(HTTPStatus.BAD_REQUEST, "bad_request", str(error))
        except Refusal as refusal:
            if refusal.code == 403 and "refused for user" in refusal.text:
                return _said(HTTPStatus.UNAUTHORIZED, "not_authorised", "Access refused.")
            return _said(HTTPStatus.BAD_REQUEST, "bad_request", refusal.text)

    async def _answer(self, request: Request, caller: Caller) -> Response:
        path = [unquote(part) for part in request.path.strip("/").split("/")]
        match path:
            case ["api", *rest]:
                caller.check_management()
                if request.method in ("GET", "HEAD"):
                    if rest[0] in ("health", "healthchecks"):
                        told = health(self._broker, rest)
                        well = told["status"] == "ok"
                        return _json(
                            told, HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
                        )
                    return _json(self._shown(rest, request, caller))
                return self._change(request, rest, caller)
            case ["clock"] if request.method in ("GET", "HEAD"):
                return _json(
                    {
                        "clock": str(self._time.kind),
                        "now": self._time.clock.now(),
                        "next_deadline": self._broker.node.next_deadline(),
                    }
                )
            case ["clock", "advance"] if request.method == "POST":
                return await self._advance(_object(request))
            case ["alarm"] if request.method in ("GET", "HEAD", "PUT"):
                if request.method == "PUT":
                    on = _object(request).get("memory")
                    if not isinstance(on, bool):
                        raise ValueError(f'expected {{"memory": true or false}}, got {on!r}')
                    self._broker.alarm(on=on)
                return _json({"memory": self._broker.blocked})
            case [""]:
                return _json({"product": "hopback broker", "api": "/api/overview"})
        raise Missing

    def _shown(self, path: list[str], request: Request, caller: Caller) -> object:
        """Read an object or list. Columns are selected and sorted like in RabbitMQ."""
        found = self._get(path, request, caller)
        if path[0] == "definitions":
            return found
        asked = _query_of(request)
        if isinstance(found, list):
            found = sort_entries(found, asked)
        all_columns = path[0] == "vhosts" and self._version.major >= 4
        return found if "columns" not in asked or all_columns else _columns(found, asked["columns"])

    def _get(  # noqa: C901 - a table of paths
        self, path: list[str], request: Request, caller: Caller
    ) -> object:
        match path:
            case ["whoami"]:
                return {"name": caller.name, "tags": list(caller.tags)}
            case ["definitions"]:
                caller.check_administrator()
                return api_objects.definitions(self._broker)
            case ["definitions", vhost]:
                return api_objects.definitions_of(self._broker, caller.access(vhost).node)
            case ["queues", vhost, name]:
                return _queue(caller.access(vhost), name)
            case ["aliveness-test", vhost]:
                caller.access(vhost)
                return {"status": "ok"}
            case ["vhosts", *rest]:
                return self._vhosts(rest, request, caller)
            case [("users" | "permissions" | "topic-permissions") as section, *rest]:
                caller.check_administrator()
                return self._of_users(section, rest, request)
            case ["nodes", *rest] if len(rest) < 2:
                caller.check_monitor()
                nodes: Any = api_objects.SINGLE["nodes"](self._broker)
                return _find(nodes, rest[0]) if rest else nodes
            case ["parameters", component, *rest]:
                return self._parameters(component, rest, caller)
            case ["user-limits" | "vhost-limits", _]:
                return self._limits(path[0], path[1], caller)
            case ["user-limits"]:
                return api_objects.user_limits(self._broker)
            case ["global-parameters", *_]:
                return []
            case ["deprecated-features", *used] if self._version.major >= 4 and used in _FEATURES:
                return []
            case [("connections" | "channels") as section, *rest] if rest:
                return self._of_connection(section, rest, caller)
            case [("exchanges" | "policies" | "operator-policies") as section, vhost, name]:
                entries = api_objects.LISTS[section](self._broker, caller.access(vhost).node)
                return _find(entries, _exchange_name(section, name))
            case [_, vhost, *_] if _names_bindings(path):
                return self._bindings(path, caller.access(vhost).node)
            case [section] if section in api_objects.SINGLE:
                return api_objects.SINGLE[section](self._broker)
            case [section, *vhost] if section in api_objects.LISTS and len(vhost) < 2:
                nodes = (caller.access(vhost[0]).node,) if vhost else caller.visible
                return page_of(self._list_section(section, nodes, caller), request, self._version)
        raise Missing

    def _limits(self, section: str, whose: str, caller: Caller) -> object:
        """Return the limits of a user or virtual host."""
        if section == "user-limits":
            api_users.user(self._broker, whose)
            found = api_objects.user_limits(self._broker)
            return [each for each in found if each["user"] == whose]
        found = api_objects.LISTS[section](self._broker, caller.access(whose).node)
        return [each for each in found if each["value"]]

    def _parameters(self, component: str, path: list[str], caller: Caller) -> object:
        nodes = (caller.access(path[0]).node,) if path else caller.visible
        found = [
            each for node in nodes for each in api_objects.parameters(self._broker, node, component)
        ]
        match path:
            case [] | [_]:
                return found
            case [_, name]:
                return _find(found, name)
        raise Missing

    def _list_section(
        self, section: str, nodes: Iterable[Node], caller: Caller
    ) -> list[dict[str, Any]]:
        """List the objects of virtual hosts. Connections of other users are only shown to
        monitoring users.
        """
        found = [each for node in nodes for each in api_objects.LISTS[section](self._broker, node)]
        if section not in ("connections", "channels") or caller.is_monitor:
            return found
        return [each for each in found if each["user"] == caller.name]

    def _vhosts(self, path: list[str], request: Request, caller: Caller) -> object:
        entries = [api_users.vhost(node) for node in caller.visible]
        match path:
            case []:
                return page_of(entries, request, self._version)
            case [name]:
                return _find(entries, name)
            case [name, ("permissions" | "topic-permissions") as section]:
                caller.check_administrator()
                _find(entries, name)
                found: Any = api_objects.SINGLE[section](self._broker)
                return [each for each in found if each["vhost"] == name]
            case [name, ("connections" | "channels") as section]:
                return self._list_section(section, (caller.access(name).node,), caller)
        raise Missing

    def _of_users(self, section: str, path: list[str], request: Request) -> object:
        broker = self._broker
        match section, path:
            case "users", [] if self._version.major >= 4:
                return page_of(api_users.users(broker), request, self._version)
            case _, []:
                return api_objects.SINGLE[section](broker)
            case "users", [name]:
                return api_users.user(broker, name)
            case "users", [name, ("permissions" | "topic-permissions") as kind]:
                api_users.user(broker, name)
                found: Any = api_objects.SINGLE[kind](broker)
                return [each for each in found if each["user"] == name]
            case "permissions", [vhost, name]:
                entries = [e for e in api_users.permissions(broker) if e["vhost"] == vhost]
                return _find(entries, name, "user")
            case "topic-permissions", [vhost, name]:
                entries = api_users.topic_permissions(broker)
                mine = [e for e in entries if (e["vhost"], e["user"]) == (vhost, name)]
                if not mine:
                    raise Missing
                return mine
        raise Missing

    def _of_connection(self, section: str, path: list[str], caller: Caller) -> object:
        if section == "channels" and len(path) == 1 and path[0] in self._broker.vhosts:
            return self._list_section(section, (caller.access(path[0]).node,), caller)
        entries = self._list_section(section, caller.visible, caller)
        match path:
            case [name, "channels"] if section == "connections":
                _find(entries, name)
                entries = self._list_section("channels", caller.visible, caller)
                return [each for each in entries if each["connection_details"]["name"] == name]
            case ["username", user] if section == "connections":
                return [each for each in entries if each["user"] == user]
            case [name]:
                return _find(entries, name)
        raise Missing

    def _bindings(self, path: list[str], node: Node) -> object:
        between = partial(api_objects.bindings_between, self._broker, node)
        match path:
            case ["queues", _, name, "bindings"]:
                return between(destination=(name, False))
            case ["exchanges", _, name, "bindings", "source"]:
                return between(source=_exchange_name("exchanges", name))
            case ["exchanges", _, name, "bindings", "destination"]:
                return between(destination=(name, True))
            case ["bindings", _, "e", source, kind, name, *key]:
                found = between(
                    source=_exchange_name("exchanges", source), destination=(name, kind == "e")
                )
                return _find(found, key[0], "properties_key") if key else found
        raise Missing

    def _change(  # noqa: C901 - a table of paths
        self, request: Request, path: list[str], caller: Caller
    ) -> Response:
        match request.method, path:
            case "POST", ["definitions"]:
                caller.check_administrator()
                api_changes.take_definitions(self._broker, _object(request), creator=caller.name)
                return Response(HTTPStatus.NO_CONTENT)
            case "POST", ["definitions", vhost]:
                caller.check_policymaker()
                caller.access(vhost)
                api_changes.take_definitions(self._broker, _object(request), vhost=vhost)
                return Response(HTTPStatus.NO_CONTENT)
            case "PUT", ["cluster-name"]:
                caller.check_administrator()
                self._broker.cluster_name = _cluster_name(_object(request))
                return Response(HTTPStatus.NO_CONTENT)
            case "POST", ["rebalance", "queues"]:
                return Response(HTTPStatus.NO_CONTENT)  # the only node has all queues
            case "DELETE", ["connections", "username", user]:
                caller.check_own(user)
                for each in api_objects.of_user(self._broker, user):
                    api_objects.close(each, request.headers.get("x-reason", ""))
                return Response(HTTPStatus.NO_CONTENT)
            case "DELETE", ["connections", name]:
                named = api_objects.of_connection(self._broker, name)
                if named is None or named.session is None:
                    raise Missing
                caller.check_own(named.session.user)
                api_objects.close(named, request.headers.get("x-reason", ""))
                return Response(HTTPStatus.NO_CONTENT)
            case (("PUT" | "DELETE"), [("vhost-limits" | "user-limits") as kind, whose, name]):
                caller.check_administrator()
                return self._change_limit(request, kind, whose, name)
            case _, [("vhosts" | "users" | "permissions" | "topic-permissions"), *_]:
                caller.check_administrator()
                return self._change_users(request, path, caller)
            case _, [section, vhost, *rest] if rest:
                if section in ("policies", "operator-policies"):
                    caller.check_policymaker()
                return _change_in(caller.access(vhost), request, section, rest)
        raise Missing

    def _change_limit(self, request: Request, kind: str, whose: str, name: str) -> Response:
        broker, of_user = self._broker, kind == "user-limits"
        if of_user:
            api_users.user(broker, whose)
        elif whose not in broker.vhosts:
            return _said(HTTPStatus.NOT_FOUND, "not_found", "vhost_not_found")
        kept = broker.user_limits if of_user else broker.vhost_limits
        if request.method == "PUT":
            asked = _object(request)
            limits = dict(kept.get(whose, {}))
            api_changes.put_limit(limits, name, asked, of_user=of_user)
            kept[whose] = limits
        elif whose in kept:
            kept[whose].pop(name, None)
        return Response(HTTPStatus.NO_CONTENT)

    def _change_users(self, request: Request, path: list[str], caller: Caller) -> Response:
        broker, permissions = self._broker, self._broker.permissions
        match request.method, path:
            case "PUT", ["vhosts", name]:
                _object(request)
                return _made(api_users.put_vhost(broker, name, caller.name))
            case "DELETE", ["vhosts", name]:
                return _gone(broker.remove_vhost(name))
            case "POST", ["users", "bulk-delete"]:
                api_users.delete_users(broker, _object(request))
                return Response(HTTPStatus.NO_CONTENT)
            case "PUT", ["users", name]:
                return _made(api_users.put_user(broker, name, _object(request)))
            case "DELETE", ["users", name]:
                return _gone(broker.remove_user(name))
            case "PUT", ["permissions", vhost, name]:
                return _made(api_users.put_permission(broker, vhost, name, _object(request)))
            case "DELETE", ["permissions", vhost, name]:
                return _gone(permissions.remove(name, vhost))
            case "PUT", ["topic-permissions", vhost, name]:
                return _made(api_users.put_topic_permission(broker, vhost, name, _object(request)))
            case "DELETE", ["topic-permissions", vhost, name]:
                return _gone(permissions.remove_topics(name, vhost))
        raise Missing

    async def _advance(self, asked: Mapping[str, Any]) -> Response:
        seconds = asked.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise ValueError(f'expected {{"seconds": a number}}, got {seconds!r}')
        try:
            found = await self._time.advance(float(seconds))
        except OverflowError:
            raise ValueError("expected seconds that can be counted, got a larger number") from None
        return _json({"now": found.now, "deadlines": found.deadlines})


def _cluster_name(asked: Mapping[str, Any]) -> str:
    if "name" not in asked:
        raise ValueError("[{key_missing,name}]")
    name = asked["name"]
    if not isinstance(name, str):
        raise ValueError(f"expected a name that is text, got {name!r}")
    return name


def _change_in(access: VhostAccess, request: Request, section: str, rest: list[str]) -> Response:
    """Change an object in a virtual host."""
    match request.method, section, rest:
        case "POST", "exchanges", [name, "publish"]:
            return _json(api_changes.publish(access, name, _object(request)))
        case "POST", "queues", [name, "get"]:
            if name not in access.node.queues:
                raise Missing
            return _json(api_changes.get(access, name, _object(request)))
        case "POST", "bindings", ["e", source, ("q" | "e") as kind, name]:
            key = api_changes.bind(access, source, (name, kind == "e"), _object(request))
            where = {"Location": f"{quote(name, '')}/{quote(key, '')}"}
            return Response(HTTPStatus.CREATED, headers=where)
        case "DELETE", "bindings", ["e", source, ("q" | "e") as kind, name, key]:
            return _gone(api_changes.unbind(access, source, (name, kind == "e"), key))
        case "PUT", _, [name] if section in api_changes.PUTS:
            return _made(api_changes.PUTS[section](access, name, _object(request)))
        case "DELETE", _, [name] if section in api_changes.DELETES:
            return _gone(api_changes.DELETES[section](access, name))
        case "DELETE", "queues", [name, "contents"]:
            return _gone(api_changes.purge(access, name))
    raise Missing


def _queue(access: VhostAccess, name: str) -> object:
    found = access.node.queues.get(name)
    if found is None:
        raise Missing
    return api_objects.queue(found)


def _names_bindings(path: list[str]) -> bool:
    match path:
        case ["queues", _, _, "bindings"]:
            return True
        case ["exchanges", _, _, "bindings", ("source" | "destination")]:
            return True
        case ["bindings", _, "e", _, ("q" | "e"), _, *key]:
            return len(key) < 2
    return False


def _find(entries: list[dict[str, Any]], name: str, key: str = "name") -> dict[str, Any]:
    for each in entries:
        if each[key] == name:
            return each
    raise Missing


def _exchange_name(section: str, name: str) -> str:
    """Return the empty name for the default exchange, which has a different name in paths."""
    return "" if section == "exchanges" and name == DEFAULT_EXCHANGE else name


def _object(request: Request) -> dict[str, Any]:
    """Parse the JSON object in a request. Raises ValueError if it is not an object."""
    try:
        found = json.loads(request.body or b"{}")
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a JSON object, got something else: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object, got another value")
    # Check the depth one level at a time, because a recursive function could fail.
    level: list[dict[str, Any] | list[Any]] = [found]
    for _ in range(_DEEPEST + 1):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return found
    raise ValueError(f"expected JSON of at most {_DEEPEST} levels, got more")


def _is_ours(request: Request, *, local: bool) -> bool:
    """Reject requests from web pages of other sites, even if their name resolves to this host."""
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    if not local:
        return "origin" not in request.headers
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return False
    return host == "localhost" or is_loopback(host)


_dumps: Callable[[object], str] = json.dumps


def _json(value: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(status, _dumps(value).encode())


def _said(status: HTTPStatus, error: str, reason: str) -> Response:
    return _json({"error": error, "reason": reason}, status)


def _made(new: bool) -> Response:
    return Response(HTTPStatus.CREATED if new else HTTPStatus.NO_CONTENT)


def _gone(there: bool) -> Response:
    if not there:
        raise Missing
    return Response(HTTPStatus.NO_CONTENT)
