"""The management client: reading what is there, and setting policies and definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from hopback.broker.management import readings
from hopback.broker.management.http import LIMIT_BYTES, TIMEOUT_S, Http, path
from hopback.broker.policies import exactly
from hopback.clock import SystemClock
from hopback.errors import ManagementError, ManagementRefused
from hopback.topology.model import Policy, Topology

if TYPE_CHECKING:
    import httpx

    from hopback.broker.management.address import ManagementAddress
    from hopback.broker.management.readings import (
        Alarm,
        BrokerOverview,
        FeatureFlag,
        QueueCounts,
        QueueReading,
    )
    from hopback.clock import Clock
    from hopback.topology.model import Binding, Exchange

__all__ = ["Management"]

_PAGE_SIZE = 500  # the most that RabbitMQ gives in one page
_LAST_MINUTE = {"msg_rates_age": "60", "msg_rates_incr": "5"}
_PAGES = 200  # 100,000 entries: a broker that goes on after that never ends


class Management:
    """A client of one broker's management API; use it as an async context manager.

    Every call raises ConnectionFailed if the API cannot be reached, ManagementRefused if the user
    may not, ManagementNotFound for what does not exist, ManagementError for the rest.
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
        self.address = address.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Safe to repeat."""
        await self._http.close()

    async def overview(self) -> BrokerOverview:
        """Version and names of the broker."""
        return readings.read_overview(await self._object(path("overview")))

    async def alarms(self) -> tuple[Alarm, ...]:
        """The resource alarms in force, on any node."""
        place = path("health", "checks", "alarms")
        status, answer = await self._http.call("GET", place, accept=(503,))
        if status != 503:
            return ()
        listed = answer.get("alarms", ()) if isinstance(answer, dict) else ()
        found = tuple(readings.read_alarm(entry) for entry in listed)
        return found or (readings.Alarm("", "unknown"),)

    async def feature_flags(self) -> tuple[FeatureFlag, ...]:
        """All feature flags, enabled or not."""
        entries = await self._list(path("feature-flags"))
        return tuple(readings.read_flag(entry) for entry in entries)

    async def queues(self, vhost: str) -> tuple[QueueReading, ...]:
        """Every classic and quorum queue and stream of the virtual host, page by page."""
        now = self._clock.now()
        entries = await self._pages(path("queues", vhost))
        known = (entry for entry in entries if readings.is_known_type(entry))
        return tuple(readings.read_queue(entry, now) for entry in known)

    async def queue(self, vhost: str, name: str) -> QueueReading:
        """One queue, with the mean of its rate over the last minute."""
        now = self._clock.now()
        place = path("queues", vhost, name)
        return readings.read_queue(await self._object(place, _LAST_MINUTE), now)

    async def totals(self, vhost: str) -> dict[str, QueueCounts]:
        """How many messages each queue has, ready, unacked and held back, by name.

        Not from the statistics: exact for classic queues, as old as the last tick for quorum queues.
        """
        now = self._clock.now()
        entries = await self._pages(
            path("queues", vhost), disable_stats="true", enable_queue_totals="true"
        )
        return {str(entry["name"]): readings.read_counts(entry, now) for entry in entries}

    async def holders(self, vhost: str, queue: str) -> tuple[str, ...]:
        """Who consumes from the queue, and whose channels hold unacked messages, in words.

        The API does not tell of which queue a channel's messages are: they may be of another one.
        """
        names = {
            entry.get("name"): entry.get("user_provided_name")
            for entry in await self._list(path("connections"))
        }
        consuming = {
            str((entry.get("channel_details") or {}).get("name"))
            for entry in await self._list(path("consumers", vhost))
            if (entry.get("queue") or {}).get("name") == queue
        }
        return tuple(
            readings.read_holder(entry, names, consuming=entry.get("name") in consuming)
            for entry in await self._list(path("channels"))
            if entry.get("vhost") == vhost
            and (entry.get("name") in consuming or entry.get("messages_unacknowledged"))
        )

    async def exchanges(self, vhost: str) -> tuple[Exchange, ...]:
        """Every exchange that someone declared: the broker's own are left out."""
        entries = await self._pages(path("exchanges", vhost))
        every = (readings.read_exchange(entry) for entry in entries)
        return tuple(e for e in every if e.name and not e.name.startswith("amq."))

    async def bindings(self, vhost: str) -> tuple[Binding, ...]:
        """Every binding but those of the default exchange."""
        entries = await self._list(path("bindings", vhost))
        return tuple(readings.read_binding(entry) for entry in entries if entry.get("source"))

    async def policies(self, vhost: str) -> tuple[Policy, ...]:
        """The policies of the virtual host; what is read here does not lag."""
        entries = await self._list(path("policies", vhost))
        return tuple(readings.read_policy(entry) for entry in entries)

    async def parameters(self, vhost: str) -> tuple[dict[str, Any], ...]:
        """The runtime parameters of the virtual host, as a definitions file holds them.

        Shovels and federation upstreams among them: their addresses hold passwords.
        """
        entries = await self._list(path("parameters"))
        return tuple(entry for entry in entries if entry.get("vhost") == vhost)

    async def operator_policies(self, vhost: str) -> tuple[Policy, ...]:
        """The operator policies, which are merged on top of the policy in force."""
        entries = await self._list(path("operator-policies", vhost))
        return tuple(readings.read_policy(entry) for entry in entries)

    async def put_policy(self, vhost: str, policy: Policy) -> None:
        """Create the policy, or replace the one of the same name."""
        body = {
            "pattern": policy.pattern,
            "definition": _plain(policy.definition),
            "priority": policy.priority,
            "apply-to": policy.apply_to,
        }
        await self._http.call("PUT", path("policies", vhost, policy.name), body=body)

    async def delete_policy(self, vhost: str, name: str) -> None:
        """Delete the policy; a missing one is no error."""
        await self._http.call("DELETE", path("policies", vhost, name), accept=(404,))

    async def definitions(self, vhost: str | None = None) -> dict[str, Any]:
        """The definitions of one virtual host, or of the whole broker, as the broker exports them."""
        return await self._object(_definitions(vhost))

    async def import_definitions(
        self, document: Mapping[str, Any], vhost: str | None = None
    ) -> None:
        """Hand definitions to the broker.

        It skips, without a word, a queue or exchange that exists with other arguments, overwrites
        policies and deletes nothing: compare before and after.
        """
        await self._http.call("POST", _definitions(vhost), body=dict(document))

    async def live_topology(self, vhost: str) -> Topology:
        """What is on the broker now, with its policies, as a topology without plans."""
        found = await self.queues(vhost)
        return Topology(
            name=vhost,
            exchanges=await self.exchanges(vhost),
            queues=tuple(reading.queue for reading in found),
            bindings=await self.bindings(vhost),
            policies=await self._policies_or_reported(vhost, found),
        )

    async def _policies_or_reported(
        self, vhost: str, found: tuple[QueueReading, ...]
    ) -> tuple[Policy, ...]:
        """The policies, or, for a user who may not list them, what each queue reports of its own."""
        try:
            return await self.policies(vhost)
        except ManagementRefused:
            return tuple(
                Policy(reading.policy, exactly(reading.queue.name), reading.effective_policy)
                for reading in found
                if reading.policy and reading.effective_policy
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
        """All pages of a listing; a broker too small or old to page answers with the whole list."""
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
    """Mapping proxies and tuples as the JSON encoder wants them."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
