"""Refusals with the texts of RabbitMQ 3.10.8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import Refusal, SessionChannel
from hopback.fields import FieldValue, Int32
from hopback.topology.model import Binding, Exchange, Queue, QueueType
from tests.unit.embedded.node_setup import Client, Setup

if TYPE_CHECKING:
    from collections.abc import Callable

_PLACE = "for queue 'q' in vhost '/'"
_LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be"
    " originally declared on another connection or the exclusive property value does not match that"
    " of the original declaration."
)


def _refusal(client: Client, queue: Queue) -> str:
    with pytest.raises(Refusal) as caught:
        client.declare(queue)
    assert not client.channel.is_open
    return caught.value.text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"x-message-ttl": "300"}, '"expected integer, got longstr"'),
        ({"x-message-ttl": -1}, "{value_negative,-1}"),
        ({"x-message-ttl": 315_360_000_001}, "{value_too_large,315360000001}"),
        ({"x-message-ttl": True}, '"expected integer, got bool"'),
        ({"x-message-ttl": None}, '"expected integer, got void"'),
        ({"x-expires": 0}, "{value_zero,0}"),
        ({"x-max-length": -1}, "{value_negative,-1}"),
        ({"x-overflow": "foo"}, "invalid_overflow"),
        ({"x-overflow": Int32(1)}, "{unacceptable_type,signedint}"),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
        ({"x-max-priority": 256}, "{max_value_exceeded,256}"),
        ({"x-single-active-consumer": Int32(1)}, "{unacceptable_type,signedint}"),
        ({"x-queue-type": "foo"}, "\"unsupported queue type 'foo'\""),
        ({"x-queue-mode": "foo"}, "\"unsupported queue mode 'foo'\""),
        ({"x-queue-version": 3}, "\"unsupported queue version '3'\""),
    ],
)
def test_invalid_argument_is_refused_with_406(
    arguments: dict[str, FieldValue], problem: str
) -> None:
    name = next(iter(arguments))
    text = _refusal(Client(Setup("3.10.8")), Queue("q", arguments=arguments))
    assert text == f"PRECONDITION_FAILED - invalid arg '{name}' {_PLACE}: {problem}"


def test_dead_letter_exchange_must_be_a_string() -> None:
    queue = Queue("q", arguments={"x-dead-letter-exchange": Int32(1)})
    assert _refusal(Client(Setup()), queue) == (
        "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange'"
        " in queue 'q' in vhost '/'"
    )


@pytest.mark.parametrize(
    ("queue", "text"),
    [
        (Queue("q", QueueType.QUORUM, durable=False), "invalid property 'non-durable'"),
        (Queue("q", QueueType.QUORUM, exclusive=True), "invalid property 'exclusive-owner'"),
        (Queue("q", QueueType.QUORUM, auto_delete=True), "invalid property 'auto-delete'"),
    ],
)
def test_quorum_queues_must_be_durable_and_not_exclusive(queue: Queue, text: str) -> None:
    assert _refusal(Client(Setup()), queue) == f"PRECONDITION_FAILED - {text} {_PLACE}"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (QueueType.CLASSIC, "x-delivery-limit"),
        (QueueType.CLASSIC, "x-dead-letter-strategy"),
        (QueueType.QUORUM, "x-max-priority"),
        (QueueType.QUORUM, "x-queue-mode"),
    ],
)
def test_arguments_of_other_queue_type_are_refused(kind: QueueType, name: str) -> None:
    values: dict[str, FieldValue] = {
        "x-delivery-limit": 3,
        "x-dead-letter-strategy": "at-least-once",
        "x-max-priority": 3,
        "x-queue-mode": "lazy",
    }
    text = _refusal(Client(Setup()), Queue("q", kind, arguments={name: values[name]}))
    assert text == (
        f"PRECONDITION_FAILED - invalid arg '{name}' {_PLACE} of queue type rabbit_{kind}_queue"
    )


def test_unknown_arguments_are_accepted() -> None:
    client = Client(Setup())
    client.classic("q", {"x-mesage-ttl": 5})
    client.classic("q", {"x-foo": 7})
    assert client.channel.is_open


@pytest.mark.parametrize(
    ("again", "difference"),
    [
        (
            Queue("q", durable=False, arguments={"x-message-ttl": 1000}),
            "arg 'durable' {}: received 'false' but current is 'true'",
        ),
        (
            Queue("q", auto_delete=True, arguments={"x-message-ttl": 1000}),
            "arg 'auto_delete' {}: received 'true' but current is 'false'",
        ),
        (
            Queue("q", arguments={"x-message-ttl": 2000}),
            "arg 'x-message-ttl' {}: received '2000' but current is '1000'",
        ),
        (
            Queue("q"),
            "arg 'x-message-ttl' {}: received none but current is the value '1000' of type 'long'",
        ),
        (
            Queue("q", arguments={"x-message-ttl": 1000, "x-max-length": Int32(3)}),
            "arg 'x-max-length' {}: received the value '3' of type 'signedint' but current is none",
        ),
        (
            Queue("q", QueueType.QUORUM, arguments={"x-message-ttl": 1000}),
            "arg 'x-queue-type' {}: received the value 'quorum' of type 'longstr'"
            " but current is none",
        ),
    ],
)
def test_different_redeclaration_names_first_difference(again: Queue, difference: str) -> None:
    client = Client(Setup())
    client.classic("q", {"x-message-ttl": 1000})
    expected = f"PRECONDITION_FAILED - inequivalent {difference.format(_PLACE)}"
    assert _refusal(client, again) == expected


def test_equivalent_redeclaration_is_accepted() -> None:
    client = Client(Setup())
    client.classic("q", {"x-message-ttl": 1000})
    client.classic("q", {"x-message-ttl": Int32(1000), "x-queue-type": "classic"})
    assert client.channel.is_open


def test_exclusive_queue_is_locked_and_deleted_with_connection() -> None:
    owner = Client(Setup())
    owner.declare(Queue("q", durable=False, exclusive=True))
    for attempt in ("get", "purge_queue", "delete_queue"):
        other = owner.again()
        with pytest.raises(Refusal) as caught:
            getattr(other.channel, attempt)("q")
        assert (caught.value.code, caught.value.text) == (405, _LOCKED)
    assert _refusal(owner, Queue("q", durable=False)) == _LOCKED
    owner.session.close()
    assert owner.setup.node.queues == {}


def test_missing_object_is_404_with_name() -> None:
    setup = Setup()
    attempts: dict[str, list[Callable[[SessionChannel], object]]] = {
        "no queue 'none' in vhost '/'": [
            lambda channel: channel.declare_queue(Queue("none"), passive=True),
            lambda channel: channel.get("none"),
            lambda channel: channel.consume("none"),
            lambda channel: channel.purge_queue("none"),
            lambda channel: channel.bind(Binding("amq.direct", "none")),
        ],
        "no exchange 'none' in vhost '/'": [
            lambda channel: channel.declare_exchange(Exchange("none"), passive=True),
            lambda channel: channel.bind(Binding("none", "none")),
            lambda channel: channel.bind(Binding("amq.direct", "none", to_exchange=True)),
        ],
    }
    for text, calls in attempts.items():
        for call in calls:
            with pytest.raises(Refusal) as caught:
                call(Client(setup).channel)
            assert (caught.value.code, caught.value.text) == (404, f"NOT_FOUND - {text}")


def test_deleting_missing_object_is_not_an_error() -> None:
    """Purge of a missing queue is."""
    client = Client(Setup())
    assert client.channel.delete_queue("none") == 0
    client.channel.delete_exchange("none")
    client.channel.unbind(Binding("none", "none"))
    assert client.channel.is_open


@pytest.mark.parametrize(
    ("exchange", "code", "text"),
    [
        (Exchange("amq.mine"), 403, "exchange name 'amq.mine' contains reserved prefix 'amq.*'"),
        (Exchange(""), 403, "operation not permitted on the default exchange"),
        (
            Exchange("amq.direct", "fanout"),
            406,
            "inequivalent arg 'type' for exchange 'amq.direct' in vhost '/':"
            " received 'fanout' but current is 'direct'",
        ),
        (Exchange("x", "x-no"), 406, "unknown exchange type 'x-no'"),
    ],
)
def test_invalid_exchange_declarations_are_refused(
    exchange: Exchange, code: int, text: str
) -> None:
    client = Client(Setup())
    with pytest.raises(Refusal) as caught:
        client.channel.declare_exchange(exchange)
    assert (caught.value.code, caught.value.text.partition(" - ")[2]) == (code, text)
    assert client.session.is_open


def test_unknown_exchange_type_closes_connection_before_4_0() -> None:
    client = Client(Setup("3.13"))
    with pytest.raises(Refusal, match="unknown exchange type 'x-no'") as caught:
        client.channel.declare_exchange(Exchange("x", "x-no"))
    assert caught.value.code == 503
    assert not client.session.is_open


def test_conditional_deletions_are_refused_with_406() -> None:
    setup = Setup()
    client = Client(setup)
    client.classic("q")
    client.exchange("x")
    client.bind("x", "q")
    client.put("q")
    client.channel.consume("q")
    attempts: list[tuple[Callable[[SessionChannel], object], str]] = [
        (
            lambda channel: channel.delete_queue("q", if_unused=True),
            "queue 'q' in vhost '/' in use",
        ),
        (
            lambda channel: channel.delete_exchange("x", if_unused=True),
            "exchange 'x' in vhost '/' in use",
        ),
    ]
    for call, text in attempts:
        with pytest.raises(Refusal) as caught:
            call(client.again().channel)
        assert caught.value.text == f"PRECONDITION_FAILED - {text}"
    client.channel.close()
    with pytest.raises(Refusal, match="queue 'q' in vhost '/' not empty"):
        client.again().channel.delete_queue("q", if_empty=True)
    assert client.again().channel.delete_queue("q") == 1


def test_unknown_tag_closes_channel_and_requeues() -> None:
    client = Client(Setup())
    client.classic("q")
    client.put("q", "1", "2", "3")
    for _ in range(2):
        client.get("q")
    client.channel.ack(1)
    with pytest.raises(Refusal) as caught:
        client.channel.ack(1)
    assert caught.value.text == "PRECONDITION_FAILED - unknown delivery tag 1"
    assert client.refusal is caught.value
    assert client.setup.ready("q") == ["2", "3"]


def test_streams_are_refused_as_not_implemented() -> None:
    text = _refusal(Client(Setup()), Queue("q", QueueType.STREAM))
    assert text == "NOT_IMPLEMENTED - the embedded broker has no streams"


def test_server_named_queues_are_equal_for_equal_seed() -> None:
    names = [Client(Setup()).declare(Queue("", durable=False, exclusive=True)) for _ in range(2)]
    assert names[0] == names[1]
    assert names[0].startswith("amq.gen-")
    assert len(names[0]) == len("amq.gen-11CssgufYOMcMdUiDKjgGA")
