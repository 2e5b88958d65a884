"""Responses of the management API. Fields that are missing are None."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hopback.errors import ManagementError
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers

LAG_S = 5.0
"""Maximum age of a value in seconds. The API collects statistics every 5 s."""

_Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BrokerOverview:
    version: BrokerVersion
    product: str
    cluster: str
    node: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """A resource alarm. The broker blocks publishers while it is active."""

    node: str
    resource: str


@dataclass(frozen=True, slots=True)
class FeatureFlag:
    name: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The message counts of a queue. They may be out of date.

    `held_back` is the number of messages that at-least-once dead-lettering has not delivered yet.
    They are not visible with AMQP.
    """

    messages: int | None
    ready: int | None
    unacked: int | None
    held_back: int | None
    consumers: int | None
    read_at: float
    source: str = "management"
    lag_s: float = LAG_S


@dataclass(frozen=True, slots=True)
class ConsumerReading:
    """A consumer of a queue. `connection` is the address of its connection, or the name if there is
    no address.
    """

    tag: str
    connection: str
    user: str


@dataclass(frozen=True, slots=True)
class ChannelReading:
    """A channel that has consumers or unacked messages.

    `connection` is the address of its connection, `name` is the name set by the client, and `since`
    is the time when the connection was opened. `consumers` contains pairs of queue and consumer
    tag.
    """

    connection: str
    name: str
    user: str
    unacked: int
    since: float | None = None
    consumers: tuple[tuple[str, str], ...] = ()

    def describe(self, queue: str) -> str:
        """Describe the channel if it holds messages of this queue."""
        called = f"{self.name!r} ({self.connection})" if self.name else self.connection
        consumes = "consumes, " if any(name == queue for name, _ in self.consumers) else ""
        return f"{called}, user {self.user!r}: {consumes}{self.unacked} unacked"


@dataclass(frozen=True, slots=True)
class QueueReading:
    """A queue with its counts and the policy that applies to it.

    `policy` and `effective_policy` are None until they are part of the statistics. This takes up to
    `LAG_S` after the queue or the policy was created.
    """

    queue: Queue
    vhost: str
    policy: str | None
    effective_policy: Headers | None
    operator_policy: str | None
    state: str | None
    idle_since: str | None
    counts: QueueCounts
    publish_rate: float | None = None
    """Rate of messages published to the queue, per second. If a single queue was read, this is the
    average of the last minute. In a list of queues, it covers the last few seconds and may be 0
    between two messages. It is None if there are no statistics.
    """


def read_overview(data: _Json) -> BrokerOverview:
    """Parse the response of `/api/overview`."""
    said = str(data.get("rabbitmq_version") or data.get("management_version") or "")
    try:
        version = BrokerVersion.parse(said)
    except ValueError as exc:
        raise ManagementError(f"overview: expected the broker's version, got {said!r}") from exc
    return BrokerOverview(
        version,
        str(data.get("product_name", "RabbitMQ")),
        str(data.get("cluster_name", "")),
        str(data.get("node", "")),
    )


def read_alarm(data: _Json) -> Alarm:
    """Parse an entry of the alarms check."""
    return Alarm(str(data.get("node", "")), str(data.get("resource", data.get("alarm", ""))))


def read_flag(data: _Json) -> FeatureFlag:
    """Parse an entry of `/api/feature-flags`."""
    return FeatureFlag(str(data["name"]), data.get("state") == "enabled")


def is_known_type(data: _Json) -> bool:
    """Return True if the queue type is supported. Plugins add other types, for example MQTT."""
    return _type_name(data) in set(QueueType)


def read_queue(data: _Json, read_at: float) -> QueueReading:
    """Parse an entry of `/api/queues`."""
    effective = data.get("effective_policy_definition")
    # These are the declared arguments. Since 4.0, they also contain the type.
    arguments = dict(_table(data.get("arguments")))
    arguments.pop("x-queue-type", None)
    details = _table(_table(data.get("message_stats")).get("publish_details"))
    rate = details.get("avg_rate", details.get("rate"))
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        rate = None  # not reported
    return QueueReading(
        queue=Queue(
            str(data["name"]),
            QueueType(_type_name(data)),
            durable=bool(data.get("durable", True)),
            exclusive=bool(data.get("exclusive") or data.get("owner_pid_details")),
            auto_delete=bool(data.get("auto_delete", False)),
            arguments=arguments,
        ),
        vhost=str(data.get("vhost", "")),
        policy=_text(data, "policy"),
        effective_policy=_table(effective) if "policy" in data else None,
        operator_policy=_text(data, "operator_policy"),
        state=_text(data, "state"),
        idle_since=_text(data, "idle_since"),
        counts=read_counts(data, read_at),
        publish_rate=None if rate is None else float(rate),
    )


def _type_name(data: _Json) -> str:
    """Return the type reported by the API. Defaults to the declared type."""
    named = _table(data.get("arguments")).get("x-queue-type")
    return str(data.get("type") or named or QueueType.CLASSIC)


def read_counts(data: _Json, read_at: float) -> QueueCounts:
    """Parse the counts of an entry of `/api/queues`."""
    return QueueCounts(
        _number(data, "messages"),
        _number(data, "messages_ready"),
        _number(data, "messages_unacknowledged"),
        _number(data, "messages_dlx"),
        _number(data, "consumers"),
        read_at,
    )


def read_channel(
    data: _Json, connections: Mapping[str, _Json], consumers: Iterable[_Json]
) -> ChannelReading:
    """Parse an entry of `/api/channels`, together with `/api/connections` and `/api/consumers`."""
    address = str(_table(data.get("connection_details")).get("name", ""))
    connection = connections.get(address, {})
    since = _number(connection, "connected_at")
    return ChannelReading(
        address,
        str(connection.get("user_provided_name") or ""),
        str(data.get("user", "")),
        _number(data, "messages_unacknowledged") or 0,
        None if since is None else since / 1000,
        tuple(
            (str(_table(each.get("queue")).get("name", "")), str(each.get("consumer_tag", "")))
            for each in consumers
        ),
    )


def read_consumers(data: _Json) -> tuple[ConsumerReading, ...]:
    """Parse the consumers of an entry of `/api/queues/{vhost}/{name}`."""
    found = []
    for each in data.get("consumer_details") or ():
        channel = each.get("channel_details") or {}
        found.append(
            ConsumerReading(
                str(each.get("consumer_tag", "")),
                str(channel.get("connection_name", "")),
                str(channel.get("user", "")),
            )
        )
    return tuple(found)


def read_exchange(data: _Json) -> Exchange:
    """Parse an entry of `/api/exchanges`."""
    return Exchange(
        str(data["name"]),
        str(data.get("type", "direct")),
        durable=bool(data.get("durable", True)),
        auto_delete=bool(data.get("auto_delete", False)),
        internal=bool(data.get("internal", False)),
        arguments=_table(data.get("arguments")),
    )


def read_binding(data: _Json) -> Binding:
    """Parse an entry of `/api/bindings`."""
    return Binding(
        str(data["source"]),
        str(data["destination"]),
        str(data.get("routing_key", "")),
        to_exchange=data.get("destination_type") == "exchange",
        arguments=_table(data.get("arguments")),
    )


def read_policy(data: _Json) -> Policy:
    """Parse an entry of `/api/policies`."""
    return Policy(
        str(data["name"]),
        str(data.get("pattern", "")),
        _table(data.get("definition")),
        int(data.get("priority", 0)),
        str(data.get("apply-to", "all")),
    )


def _table(value: object) -> Headers:
    """Return a table. If it is empty, the API may encode it as `[]`."""
    return cast("Mapping[str, FieldValue]", value) if isinstance(value, Mapping) else {}


def _number(data: _Json, key: str) -> int | None:
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(data: _Json, key: str) -> str | None:
    value = data.get(key)
    return value if isinstance(value, str) and value else None
