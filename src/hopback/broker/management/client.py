"""A client of the management API, used to read objects and to set policies and definitions.

The address can be derived from the AMQP address of the same broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from hopback.broker.limits import exact_pattern
from hopback.broker.management import readings
from hopback.clock import Clock, SystemClock
from hopback.errors import (
    ConnectionFailed,
    ManagementError,
    ManagementNotFound,
    ManagementRefused,
    describe_scheme,
)
from hopback.extras import needs
from hopback.topology.model import Binding, Exchange, Policy, Topology

if TYPE_CHECKING:
    from types import ModuleType

    import httpx

    from hopback.broker.management.readings import (
        Alarm,
        BrokerOverview,
        FeatureFlag,
        QueueCounts,
        QueueReading,
    )

_PLAIN_PORT = 15672  # the default of RabbitMQ
_TLS_PORT = 15671  # the default of RabbitMQ
_SCHEMES = {"amqp": "http", "amqps": "https", "http": "http", "https": "https"}


@dataclass(frozen=True, slots=True)
class ManagementAddress:
    """The address and credentials of a management API. The password is never shown."""

    url: str
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def derive(cls, broker: str | None, management: str | None = None) -> Self:
        """Combine an AMQP address with an HTTP address. One of them can be None.

        `management` specifies the host and port, if it is given. The username, password and
        certificates are taken from `management` if it contains them, or else from `broker`.
        """
        amqp = _split(broker, "broker", ("amqp", "amqps")) if broker else None
        http = _split(management, "management", ("http", "https")) if management else None
        chosen = http or amqp
        if chosen is None:
            raise ValueError("expected a broker or a management address, got neither")
        sources = tuple(part for part in (http, amqp) if part is not None)
        user, password = "guest", "guest"
        for parts in sources:
            if parts.username is not None:
                user, password = unquote(parts.username), _password(parts)
                break
        # The same names as in AMQP addresses: `cacertfile`, `certfile` and `keyfile`.
        merged: dict[str, str] = {}
        for parts in sources:
            for key, values in parse_qs(parts.query).items():
                merged.setdefault(key, values[-1])
        # The path of the address, up to `/api`.
        scheme = _SCHEMES[chosen.scheme]
        given = chosen.port if chosen.scheme == scheme else None
        port = given or (_TLS_PORT if scheme == "https" else _PLAIN_PORT)
        host = f"[{chosen.hostname}]" if ":" in (chosen.hostname or "") else chosen.hostname
        path = chosen.path.rstrip("/") if chosen.scheme == scheme else ""
        return cls(
            f"{scheme}://{host}:{port}{path.removesuffix('/api')}",
            user,
            password,
            merged.get("cacertfile"),
            merged.get("certfile"),
            merged.get("keyfile"),
        )


def virtual_host(broker: str) -> str:
    """Return the virtual host of an AMQP address. Defaults to `/`."""
    path = _split(broker, "broker", ("amqp", "amqps")).path.removeprefix("/")
    return unquote(path) or "/"


def _split(text: str, what: str, schemes: tuple[str, ...]) -> SplitResult:
    """Parse an address. It may contain a password, so it is not part of the ValueError."""
    expected = f"{schemes[0]}://… or {schemes[1]}://…"
    try:
        # If there are several hosts, only use the first (`amqp://u:p@a:1,b:2/v`).
        scheme, separator, rest = text.partition("://")
        authority = re.split("[/?]", rest, maxsplit=1)[0]
        credentials, at, hosts = authority.rpartition("@")
        parts = urlsplit(
            f"{scheme}{separator}{credentials}{at}{hosts.split(',')[0]}{rest[len(authority) :]}"
        )
        (parts.hostname or "").encode("idna")  # raises ValueError like the rest
        found = "no valid host" if parts.scheme in schemes else describe_scheme(text)
        well_formed = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        found, well_formed = "no valid host and port", False
    if not well_formed:
        raise ValueError(f"{what} address: expected {expected} with a host, got {found}")
    return parts


def _password(parts: SplitResult) -> str:
    """Return the password. The address may contain it directly, or the name of a file or variable."""
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    try:
        if "password_file" in options:
            return Path(options["password_file"]).read_text(encoding="utf-8").rstrip("\r\n")
        if "password_env" in options:
            return os.environ[options["password_env"]]
    except (OSError, KeyError, UnicodeDecodeError) as exc:
        raise ConnectionFailed("expected the password at the place given in the address") from exc
    return unquote(parts.password or "")


# Seconds to wait for a response. A busy node needs several seconds to collect statistics.
TIMEOUT_S = 15.0
# Maximum size of a response in bytes. This is enough for large definitions. Larger responses are
# rejected to protect the memory.
LIMIT_BYTES = 64 * 1024 * 1024
# Maximum length of a reason in an error. It has room for a sentence, but not for an HTML page.
_REASON_CHARACTERS = 300


def path(*segments: str) -> str:
    """Build an API path. Each segment is escaped, for example `/` is written as `%2F`."""
    return "/api/" + "/".join(quote(segment, safe="") for segment in segments)


class Http:
    """A pool of connections to a management API."""

    def __init__(
        self,
        address: ManagementAddress,
        *,
        timeout_s: float = TIMEOUT_S,
        limit_bytes: int = LIMIT_BYTES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._httpx = _import_httpx()
        self._address = address
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes
        # Loading certificates takes 20 ms and is only needed for TLS.
        tls: ssl.SSLContext | bool = False
        if address.url.startswith("https"):
            tls = ssl.create_default_context(cafile=address.ca_file)
            if address.cert_file:
                tls.load_cert_chain(address.cert_file, address.key_file)
        self._client = self._httpx.AsyncClient(
            base_url=address.url,
            auth=(address.user, address.password),
            timeout=timeout_s,
            verify=tls,
            follow_redirects=False,
            # Ignore proxies in the environment, so that they don't see the credentials of the
            # broker.
            trust_env=False,
            transport=transport,
        )

    async def call(
        self,
        method: str,
        where: str,
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
        accept: tuple[int, ...] = (),
    ) -> tuple[int, Any]:
        """Return the status and the decoded response. Raises an error unless the status is 2xx or
        in `accept`.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                status, content = await self._exchange(method, where, body, query)
        except (self._httpx.HTTPError, TimeoutError, OSError) as exc:
            # Describe the error without any secrets.
            if isinstance(exc, TimeoutError | self._httpx.TimeoutException):
                found = f"no answer within {self._timeout_s:g} s"
            else:
                found = str(exc).rstrip(".") or type(exc).__name__
            raise ConnectionFailed(
                f"management API at {self._address.url}: expected an answer, got: {found}. "
                "Is the management plugin enabled, and is this its port? (--management URL)"
            ) from exc
        answer = _decode(content, f"{method} {self._address.url}{where}", status)
        if status // 100 != 2 and status not in accept:
            raise self._refusal(method, where, status, answer)
        return status, answer

    async def _exchange(
        self, method: str, where: str, body: object, query: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        """Send a request and read the response up to the limit."""
        received = bytearray()
        async with self._client.stream(method, where, json=body, params=query) as response:
            async for chunk in response.aiter_bytes():
                received += chunk
                if len(received) > self._limit_bytes:
                    raise ManagementError(
                        f"{method} {self._address.url}{where}: expected an answer of at most "
                        f"{self._limit_bytes} bytes, got more. Specify one virtual host"
                    )
            return response.status_code, bytes(received)

    async def close(self) -> None:
        """Close the pool. Can be called more than once."""
        await self._client.aclose()

    def _refusal(self, method: str, where: str, status: int, answer: object) -> ManagementError:
        place = f"{method} {self._address.url}{where}"
        # Return the reason given by the broker. HTML is unescaped, and long texts are truncated.
        words = answer.get("reason", answer.get("error")) if isinstance(answer, dict) else answer
        text = unescape(str(words if words is not None else "no reason given"))
        reason = " ".join(text.split())[:_REASON_CHARACTERS]
        if status in (401, 403):
            return ManagementRefused(
                f"{place}: user {self._address.user!r} was refused: {status} {reason}",
                status=status,
            )
        if status == 404:
            return ManagementNotFound(f"{place}: not found: {reason}", status=status)
        return ManagementError(f"{place}: the broker answered {status}: {reason}", status=status)


def _decode(content: bytes, place: str, status: int) -> Any:
    """Decode a JSON response. Returns None if it is empty, and the text of errors that are not
    JSON.
    """
    if not content.strip():
        return None
    try:
        return json.loads(content)
    except ValueError as exc:
        if status // 100 != 2:
            return content[:_REASON_CHARACTERS].decode(errors="replace")
        raise ManagementError(
            f"{place}: expected JSON, got something else: is this address a management API?",
            status=status,
        ) from exc


def _import_httpx() -> ModuleType:
    """Import httpx, or raise an error that explains how to install it.

    The command line tool of httpx uses rich, which takes as long to import as httpx itself. httpx
    also works without it, so we skip this import.
    """
    unwanted = "httpx._main"
    is_new = unwanted not in sys.modules and "httpx" not in sys.modules
    if is_new:
        sys.modules[unwanted] = None  # type: ignore[assignment]
    try:
        with needs("management", "the management API"):
            import httpx
    finally:
        if is_new:
            del sys.modules[unwanted]
    return httpx


_PAGE_SIZE = 500  # entries, the maximum allowed by RabbitMQ
_LAST_MINUTE = {"msg_rates_age": "60", "msg_rates_incr": "5"}
# Maximum number of pages (100,000 entries). It stops the loop if a broker always returns another page.
_PAGES = 200


class Management:
    """A client for the management API of a broker. It is an async context manager.

    All methods raise ConnectionFailed if the API cannot be reached, ManagementRefused if the user
    has no permission, ManagementNotFound if the object does not exist, and ManagementError for all
    other errors.
    """

    def __init__(
        self,
        address: ManagementAddress,
        *,
        timeout_s: float = TIMEOUT_S,
        limit_bytes: int = LIMIT_BYTES,
        clock: Clock | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = Http(
            address, timeout_s=timeout_s, limit_bytes=limit_bytes, transport=transport
        )
        self._clock = clock or SystemClock()
        self.address: str = address.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Can be called more than once."""
        await self._http.close()

    async def overview(self) -> BrokerOverview:
        """Return the version and names of the broker."""
        return readings.read_overview(await self._object(path("overview")))

    async def alarms(self) -> tuple[Alarm, ...]:
        """Return the active resource alarms of all nodes."""
        place = path("health", "checks", "alarms")
        status, answer = await self._http.call("GET", place, accept=(503,))
        if status != 503:
            return ()
        listed = answer.get("alarms", ()) if isinstance(answer, dict) else ()
        found = tuple(readings.read_alarm(entry) for entry in listed)
        return found or (readings.Alarm("", "unknown"),)

    async def feature_flags(self) -> tuple[FeatureFlag, ...]:
        """Return all feature flags, whether they are enabled or not."""
        entries = await self._list(path("feature-flags"))
        return tuple(readings.read_flag(entry) for entry in entries)

    async def queues(self, vhost: str) -> tuple[QueueReading, ...]:
        """Return all classic queues, quorum queues and streams of the virtual host. They are read
        in pages.
        """
        now = self._clock.now()
        entries = await self._pages(path("queues", vhost))
        known = (entry for entry in entries if readings.is_known_type(entry))
        return tuple(readings.read_queue(entry, now) for entry in known)

    async def queue(self, vhost: str, name: str) -> QueueReading:
        """Read a single queue, including its average rate over the last minute."""
        now = self._clock.now()
        place = path("queues", vhost, name)
        return readings.read_queue(await self._object(place, _LAST_MINUTE), now)

    async def totals(self, vhost: str) -> dict[str, QueueCounts]:
        """Count the ready, unacked and held-back messages of each queue.

        These counts are not based on statistics. They are exact for classic queues and as old as
        the last tick for quorum queues.
        """
        now = self._clock.now()
        entries = await self._pages(
            path("queues", vhost), disable_stats="true", enable_queue_totals="true"
        )
        return {str(entry["name"]): readings.read_counts(entry, now) for entry in entries}

    async def holders(self, vhost: str, queue: str) -> tuple[str, ...]:
        """Describe the consumers of a queue and the channels with unacked messages.

        The API does not show which queue the unacked messages of a channel belong to. It may be a
        different queue.
        """
        return tuple(
            each.describe(queue)
            for each in await self.channels(vhost)
            if each.unacked or any(name == queue for name, _ in each.consumers)
        )

    async def channels(self, vhost: str) -> tuple[readings.ChannelReading, ...]:
        """Read the channels of a virtual host that have consumers or unacked messages.

        Users need the `monitoring` tag to see channels of other users.
        """
        connections = {
            str(entry.get("name")): entry for entry in await self._list(path("connections"))
        }
        consumers: dict[str, list[dict[str, Any]]] = {}
        for entry in await self._list(path("consumers", vhost)):
            channel = str((entry.get("channel_details") or {}).get("name"))
            consumers.setdefault(channel, []).append(entry)
        return tuple(
            readings.read_channel(entry, connections, consumers.get(str(entry.get("name")), ()))
            for entry in await self._list(path("channels"))
            if entry.get("vhost") == vhost
            and (entry.get("name") in consumers or entry.get("messages_unacknowledged"))
        )

    async def consumers(self, vhost: str, queue: str) -> tuple[readings.ConsumerReading, ...]:
        """Read the consumers of a queue. Raises ManagementNotFound if the queue does not exist."""
        _, answer = await self._http.call("GET", path("queues", vhost, queue))
        return readings.read_consumers(answer)

    async def connection_names(self, vhost: str) -> frozenset[str]:
        """Return the client-provided names of the connections of a virtual host.

        Users need the `monitoring` tag to see connections of other users.
        """
        place = path("connections")
        _, answer = await self._http.call(
            "GET", place, query={"columns": "vhost,user_provided_name"}
        )
        return frozenset(
            str(entry["user_provided_name"])
            for entry in _entries(answer, f"GET {self.address}{place}")
            if entry.get("vhost") == vhost and entry.get("user_provided_name")
        )

    async def exchanges(self, vhost: str) -> tuple[Exchange, ...]:
        """Read all exchanges that are not built in."""
        entries = await self._pages(path("exchanges", vhost))
        every = (readings.read_exchange(entry) for entry in entries)
        return tuple(e for e in every if e.name and not e.name.startswith("amq."))

    async def bindings(self, vhost: str) -> tuple[Binding, ...]:
        """Read all bindings. Those of the default exchange are omitted."""
        entries = await self._list(path("bindings", vhost))
        return tuple(readings.read_binding(entry) for entry in entries if entry.get("source"))

    async def policies(self, vhost: str) -> tuple[Policy, ...]:
        """Read the policies of the virtual host. They are always up to date."""
        entries = await self._list(path("policies", vhost))
        return tuple(readings.read_policy(entry) for entry in entries)

    async def parameters(self, vhost: str) -> tuple[dict[str, Any], ...]:
        """Read the runtime parameters of the virtual host in the format of definitions.

        These include shovels and federation upstreams. Their addresses may contain passwords.
        """
        entries = await self._list(path("parameters"))
        return tuple(entry for entry in entries if entry.get("vhost") == vhost)

    async def operator_policies(self, vhost: str) -> tuple[Policy, ...]:
        """Read the operator policies, which are merged with the regular policies."""
        entries = await self._list(path("operator-policies", vhost))
        return tuple(readings.read_policy(entry) for entry in entries)

    async def put_policy(self, vhost: str, policy: Policy) -> None:
        body = {
            "pattern": policy.pattern,
            "definition": _plain(policy.definition),
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        }
        await self._http.call("PUT", path("policies", vhost, policy.name), body=body)

    async def delete_policy(self, vhost: str, name: str) -> None:
        """Delete a policy. Does nothing if it does not exist."""
        await self._http.call("DELETE", path("policies", vhost, name), accept=(404,))

    async def definitions(self, vhost: str | None = None) -> dict[str, Any]:
        """Export the definitions of a virtual host or of the whole broker."""
        return await self._object(_definitions(vhost))

    async def import_definitions(
        self, document: Mapping[str, Any], vhost: str | None = None
    ) -> None:
        """Import definitions.

        Existing queues and exchanges with different arguments are skipped silently. Policies are
        overwritten, and no objects are deleted. Compare the definitions before and after the import
        to find the changes.
        """
        await self._http.call("POST", _definitions(vhost), body=dict(document))

    async def live_topology(
        self, vhost: str, queues: Iterable[QueueReading] | None = None
    ) -> Topology:
        """Read the broker's objects and policies as a topology that has no plans.

        Pass `queues` to use queues that were just read.
        """
        found = await self.queues(vhost) if queues is None else tuple(queues)
        exchanges, bindings = await self.exchanges(vhost), await self.bindings(vhost)
        try:
            policies = await self.policies(vhost)
        except ManagementRefused:
            # Users who are not allowed to list policies can still see which policy applies to a
            # queue.
            policies = tuple(
                Policy(reading.policy, exact_pattern(reading.queue.name), reading.effective_policy)
                for reading in found
                if reading.policy and reading.effective_policy
            )
        return Topology(
            vhost,
            exchanges=exchanges,
            queues=tuple(reading.queue for reading in found),
            bindings=bindings,
            policies=policies,
        )

    async def _object(self, place: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        _, answer = await self._http.call("GET", place, query=query)
        if not isinstance(answer, dict):
            raise ManagementError(
                f"GET {self.address}{place}: expected an object, got {answer!r:.80}"
            )
        return answer

    async def _list(self, place: str) -> list[dict[str, Any]]:
        _, answer = await self._http.call("GET", place)
        return _entries(answer, f"GET {self.address}{place}")

    async def _pages(self, place: str, **query: str) -> list[dict[str, Any]]:
        """Read all pages of a list. Brokers that do not support paging return everything at once."""
        entries: list[dict[str, Any]] = []
        for number in range(1, _PAGES + 1):
            page = {"page": str(number), "page_size": str(_PAGE_SIZE)}
            _, answer = await self._http.call("GET", place, query={**query, **page})
            if not isinstance(answer, dict):
                return _entries(answer, f"GET {self.address}{place}")
            entries += _entries(answer.get("items"), f"GET {self.address}{place}")
            if number >= int(answer.get("page_count", 1)):
                return entries
        raise ManagementError(
            f"GET {self.address}{place}: expected at most {_PAGES * _PAGE_SIZE} entries, got more"
        )


def _definitions(vhost: str | None) -> str:
    return path("definitions") if vhost is None else path("definitions", vhost)


def _entries(answer: object, place: str) -> list[dict[str, Any]]:
    if not isinstance(answer, list) or not all(isinstance(entry, dict) for entry in answer):
        raise ManagementError(f"{place}: expected a list of objects, got {answer!r:.80}")
    return answer


def _plain(value: object) -> Any:
    """Convert mapping proxies and tuples for the JSON encoder."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
