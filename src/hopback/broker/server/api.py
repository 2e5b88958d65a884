"""The management HTTP API, as far as tools of one virtual host use it, and the clock.

GET  /api/overview, /api/whoami, /api/nodes, /api/vhosts, /api/users, /api/permissions,
     /api/feature-flags, /api/cluster-name, /api/aliveness-test/{vhost}
GET  /api/health/checks/alarms
GET  /api/queues, /api/exchanges, /api/bindings, /api/policies, /api/operator-policies,
     /api/connections, /api/channels, /api/consumers, each also with /{vhost}; and each by its name
GET, POST, DELETE  /api/bindings/{vhost}/e/{exchange}/{q|e}/{name}[/{key}]
POST         /api/exchanges/{vhost}/{name}/publish, /api/queues/{vhost}/{name}/get
DELETE       /api/connections/{name}
PUT, DELETE  /api/queues/{vhost}/{name}, /api/exchanges/{vhost}/{name},
             /api/policies/{vhost}/{name}, /api/operator-policies/{vhost}/{name}
DELETE       /api/queues/{vhost}/{name}/contents
GET, POST    /api/definitions, /api/definitions/{vhost}
GET  /clock                     {"clock": "virtual", "now": …, "next_deadline": …}
POST /clock/advance             {"seconds": 1800}
"""

from __future__ import annotations

import json
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from hopback.broker.embedded.refusal import Refusal
from hopback.broker.server import api_changes, api_connections, api_messages, api_objects
from hopback.endpoint import Response, is_loopback
from hopback.errors import InvalidTopology

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hopback.broker.server.house import House
    from hopback.broker.server.time_travel import ServerTime
    from hopback.endpoint import Request

__all__ = ["Api"]

_MOST_PER_PAGE = 500
_DEEPEST = 100  # far more than arguments have; what reads them further on recurses


class _Missing(Exception):
    """There is no such thing here."""


class Api:
    """Answers requests about one broker."""

    def __init__(self, house: House, time: ServerTime) -> None:
        self._house = house
        self._time = time

    async def __call__(self, request: Request) -> Response:
        """Answer one request, whatever it is."""
        if not _is_ours(request, local=is_loopback(self._house.settings.host)):
            return _said(HTTPStatus.FORBIDDEN, "forbidden", "requests from other sites are refused")
        user = self._house.users.basic(request.headers.get("authorization", ""), request.peer)
        if user is None:
            return _unauthorized()
        try:
            return await self._answer(request, user)
        except _Missing:
            return _said(HTTPStatus.NOT_FOUND, "Object Not Found", "Not Found")
        except (ValueError, InvalidTopology) as error:
            return _said(HTTPStatus.BAD_REQUEST, "bad_request", str(error))
        except Refusal as refusal:
            return _said(HTTPStatus.BAD_REQUEST, "bad_request", refusal.text)

    async def _answer(self, request: Request, user: str) -> Response:
        path = [unquote(part) for part in request.path.strip("/").split("/")]
        match path:
            case ["api", "health", "checks", "alarms"]:
                status = HTTPStatus.SERVICE_UNAVAILABLE if self._house.blocked else HTTPStatus.OK
                return _json(api_objects.alarms(self._house), status)
            case ["api", *rest] if request.method in ("GET", "HEAD"):
                return _json(self._get(rest, request, user))
            case ["api", *rest]:
                return self._change(request, rest, user)
            case ["clock"] if request.method in ("GET", "HEAD"):
                return _json(self._clock())
            case ["clock", "advance"] if request.method == "POST":
                return await self._advance(_object(request))
            case [""]:
                return _json({"product": "hopback broker", "api": "/api/overview"})
        raise _Missing

    # Reading.

    def _get(  # noqa: C901 - a table of paths
        self, path: list[str], request: Request, user: str
    ) -> object:
        match path:
            case ["whoami"]:
                return {"name": user, "tags": ["administrator"]}
            case ["definitions"]:
                return api_objects.definitions(self._house, self._house.users.names)
            case ["definitions", vhost]:
                self._check_vhost(vhost)
                return api_objects.definitions(self._house, None)
            case ["queues", vhost, name]:
                self._check_vhost(vhost)
                return self._queue(name)
            case [section, *rest] if section in ("connections", "channels") and rest:
                return self._of_connection(section, rest)
            case ["aliveness-test", vhost]:
                self._check_vhost(vhost)
                return {"status": "ok"}
            case ["vhosts", vhost, "permissions"]:
                self._check_vhost(vhost)
                return api_objects.permissions(self._house)
            case ["users", name, "permissions"]:
                return [
                    each for each in api_objects.permissions(self._house) if each["user"] == name
                ]
            case ["permissions", vhost, name]:
                self._check_vhost(vhost)
                return _named(api_objects.permissions(self._house), name, "user")
            case [("nodes" | "users" | "vhosts") as section, name]:
                entries: Any = api_objects.SINGLE[section](self._house)
                return _named(entries, name)
            case [("exchanges" | "policies" | "operator-policies") as section, vhost, name]:
                self._check_vhost(vhost)
                return _named(
                    api_objects.LISTS[section](self._house), _exchange_name(section, name)
                )
            case [_, vhost, *_] if (found := self._bindings(path)) is not None:
                self._check_vhost(vhost)
                return found
            case [section] if section in api_objects.SINGLE:
                return api_objects.SINGLE[section](self._house)
            case [section, *vhost] if section in api_objects.LISTS and len(vhost) < 2:
                if vhost:
                    self._check_vhost(vhost[0])
                return _paged(api_objects.LISTS[section](self._house), request)
        raise _Missing

    def _queue(self, name: str) -> object:
        found = self._house.node.queues.get(name)
        if found is None:
            raise _Missing
        return api_objects.queue(self._house, found)

    def _of_connection(self, section: str, path: list[str]) -> object:
        entries = api_objects.LISTS[section](self._house)
        match path:
            case [name, "channels"] if section == "connections":
                entries = api_objects.LISTS["channels"](self._house)
                return [each for each in entries if each["connection_details"]["name"] == name]
            case [name]:
                return _named(entries, name)
        raise _Missing

    def _bindings(self, path: list[str]) -> object:
        """The bindings that a path names; None if it names none."""
        between = partial(api_objects.bindings_between, self._house)
        match path:
            case ["queues", _, name, "bindings"]:
                return between(destination=(name, False))
            case ["exchanges", _, name, "bindings", "source"]:
                return between(source=_exchange_name("exchanges", name))
            case ["exchanges", _, name, "bindings", "destination"]:
                return between(destination=(name, True))
            case ["bindings", _, "e", source, ("q" | "e") as kind, name, *key] if len(key) < 2:
                found = between(
                    source=_exchange_name("exchanges", source), destination=(name, kind == "e")
                )
                return _named(found, key[0], "properties_key") if key else found
        return None

    def _check_vhost(self, vhost: str) -> None:
        if vhost != "/":
            raise _Missing

    # Changing.

    def _change(  # noqa: C901 - a table of paths
        self, request: Request, path: list[str], user: str
    ) -> Response:
        house = self._house
        match request.method, path:
            case "POST", ["exchanges", vhost, name, "publish"]:
                self._check_vhost(vhost)
                return _json(api_messages.publish(house, name, _object(request), user))
            case "POST", ["queues", vhost, name, "get"]:
                self._check_vhost(vhost)
                if name not in house.node.queues:
                    raise _Missing
                return _json(api_messages.get(house, name, _object(request), user))
            case "POST", ["bindings", vhost, "e", source, ("q" | "e") as kind, name]:
                self._check_vhost(vhost)
                key = api_changes.bind(house, source, (name, kind == "e"), _object(request))
                where = {"Location": f"{quote(name, '')}/{quote(key, '')}"}
                return Response(HTTPStatus.CREATED, headers=where)
            case "DELETE", ["bindings", vhost, "e", source, ("q" | "e") as kind, name, key]:
                self._check_vhost(vhost)
                return _gone(api_changes.unbind(house, source, (name, kind == "e"), key))
            case "DELETE", ["connections", name]:
                client = api_connections.of_connection(house, name)
                if client is None:
                    raise _Missing
                api_connections.close(client, request.headers.get("x-reason", ""))
                return Response(HTTPStatus.NO_CONTENT)
            case "POST", ["definitions", *vhost] if len(vhost) < 2:
                if vhost:
                    self._check_vhost(vhost[0])
                api_changes.take_definitions(house, _object(request))
                return Response(HTTPStatus.NO_CONTENT)
            case "PUT", [section, vhost, name] if section in api_changes.PUTS:
                self._check_vhost(vhost)
                return _made(api_changes.PUTS[section](house, name, _object(request)))
            case "DELETE", [section, vhost, name] if section in api_changes.DELETES:
                self._check_vhost(vhost)
                return _gone(api_changes.DELETES[section](house, name))
            case "DELETE", ["queues", vhost, name, "contents"]:
                self._check_vhost(vhost)
                return _gone(api_changes.purge(house, name))
        raise _Missing

    # Time.

    def _clock(self) -> Mapping[str, object]:
        return {
            "clock": str(self._time.kind),
            "now": self._time.clock.now(),
            "next_deadline": self._house.node.next_deadline(),
        }

    async def _advance(self, asked: Mapping[str, Any]) -> Response:
        seconds = asked.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise ValueError(f'expected {{"seconds": a number}}, got {seconds!r}')
        try:
            found = await self._time.advance(float(seconds))
        except OverflowError:
            raise ValueError("expected seconds that can be counted, got a larger number") from None
        return _json({"now": found.now, "deadlines": found.deadlines})


def _named(entries: list[dict[str, Any]], name: str, key: str = "name") -> dict[str, Any]:
    for each in entries:
        if each[key] == name:
            return each
    raise _Missing


def _exchange_name(section: str, name: str) -> str:
    """In paths the exchange without a name has one."""
    return "" if section == "exchanges" and name == api_messages.DEFAULT_EXCHANGE else name


def _object(request: Request) -> dict[str, Any]:
    """The JSON object that came with the request; ValueError if it is none."""
    try:
        found = json.loads(request.body or b"{}")
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a JSON object, got something else: {error}") from error
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object, got another value")
    _check_depth(found)
    return found


def _check_depth(value: dict[str, Any]) -> None:
    """ValueError if it is nested deeper than any argument is; level by level, not by recursion."""
    level: list[dict[str, Any] | list[Any]] = [value]
    for _ in range(_DEEPEST + 1):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return
    raise ValueError(f"expected JSON of at most {_DEEPEST} levels, got more")


def _paged(entries: list[dict[str, Any]], request: Request) -> object:
    """All of them, or the page that was asked for."""
    asked = {key: values[-1] for key, values in parse_qs(request.query).items()}
    if "page" not in asked:
        return entries
    size = _number(asked.get("page_size", "100"), _MOST_PER_PAGE)
    pages = max(1, -(-len(entries) // size))
    page = _number(asked["page"], 1_000_000)
    if page > pages:
        raise ValueError(f"expected a page from 1 to {pages}, got {page}")
    items = entries[(page - 1) * size : page * size]
    return {
        "filtered_count": len(entries),
        "item_count": len(items),
        "items": items,
        "page": page,
        "page_count": pages,
        "page_size": size,
        "total_count": len(entries),
    }


def _number(text: str, most: int) -> int:
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= most:
        raise ValueError(f"expected a number from 1 to {most}, got {text!r}")
    return int(text)


def _is_ours(request: Request, *, local: bool) -> bool:
    """Not from a page of another site, whatever name that site gives this machine."""
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
        raise _Missing
    return Response(HTTPStatus.NO_CONTENT)


def _unauthorized() -> Response:
    body = _dumps({"error": "not_authorized", "reason": "Login failed"}).encode()
    headers = {"WWW-Authenticate": 'Basic realm="hopback broker"'}
    return Response(HTTPStatus.UNAUTHORIZED, body, headers=headers)
