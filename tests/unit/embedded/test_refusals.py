"""What the broker refuses, word for word as a RabbitMQ 3.10.8 said it."""

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
def test_a_wrong_argument_is_named_with_what_is_wrong(
    arguments: dict[str, FieldValue], problem: str
) -> None:
    """A declaration with a value that the broker does not take is refused with 406."""
    name = next(iter(arguments))
    text = _refusal(Client(Setup("3.10.8")), Queue("q", arguments=arguments))
    assert text == f"PRECONDITION_FAILED - invalid arg '{name}' {_PLACE}: {problem}"


def test_a_dead_letter_exchange_must_be_a_string() -> None:
    """The broker has another sentence for this one."""
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
def test_quorum_queues_are_durable_shared_and_permanent(queue: Queue, text: str) -> None:
    """Anything else is refused."""
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
def test_arguments_of_the_other_queue_type_are_refused(kind: QueueType, name: str) -> None:
    """Each type knows its own."""
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


def test_unknown_arguments_are_accepted_and_not_compared() -> None:
    """A typo is accepted in silence."""
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
def test_a_redeclaration_that_differs_names_the_first_difference(
    again: Queue, difference: str
) -> None:
    """What exists stays, and the channel is closed with 406."""
    client = Client(Setup())
    client.classic("q", {"x-message-ttl": 1000})
    expected = f"PRECONDITION_FAILED - inequivalent {difference.format(_PLACE)}"
    assert _refusal(client, again) == expected


def test_the_same_declaration_is_no_error() -> None:
    """Integers of other widths are the same, and an explicit classic type is none."""
    client = Client(Setup())
    client.classic("q", {"x-message-ttl": 1000})
    client.classic("q", {"x-message-ttl": Int32(1000), "x-queue-type": "classic"})
    assert client.channel.is_open


def test_an_exclusive_queue_is_locked_for_others_and_gone_with_its_connection() -> None:
    """405 for everyone else, whatever they want with it."""
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


def test_what_is_missing_is_named() -> None:
    """404 with the kind and the name."""
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


def test_deleting_or_unbinding_what_is_missing_is_no_error() -> None:
    """Only purge insists on the queue."""
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
def test_exchanges_that_cannot_be_declared(exchange: Exchange, code: int, text: str) -> None:
    """The channel ends; the connection stays."""
    client = Client(Setup())
    with pytest.raises(Refusal) as caught:
        client.channel.declare_exchange(exchange)
    assert (caught.value.code, caught.value.text.partition(" - ")[2]) == (code, text)
    assert client.session.is_open


def test_an_unknown_exchange_type_ended_the_connection_before() -> None:
    """Up to 3.13."""
    client = Client(Setup("3.13"))
    with pytest.raises(Refusal, match="unknown exchange type 'x-no'") as caught:
        client.channel.declare_exchange(Exchange("x", "x-no"))
    assert caught.value.code == 503
    assert not client.session.is_open


def test_deletions_with_conditions() -> None:
    """A queue in use or not empty, an exchange in use: 406, and they stay."""
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


def test_a_tag_that_is_unknown_closes_the_channel_and_gives_everything_back() -> None:
    """Settling twice is as bad as settling what never was."""
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


def test_streams_are_refused_with_a_clear_word() -> None:
    """The embedded broker does not pretend to have them."""
    text = _refusal(Client(Setup()), Queue("q", QueueType.STREAM))
    assert text == "NOT_IMPLEMENTED - the embedded broker has no streams"


def test_server_named_queues_are_the_same_for_the_same_seed() -> None:
    """Names look like the broker's own, and a run can be repeated."""
    names = [Client(Setup()).declare(Queue("", durable=False, exclusive=True)) for _ in range(2)]
    assert names[0] == names[1]
    assert names[0].startswith("amq.gen-")
    assert len(names[0]) == len("amq.gen-11CssgufYOMcMdUiDKjgGA")
