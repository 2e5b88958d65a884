"""The methods a client may send on a channel: each a few lines between the wire and the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.broker.embedded.refusal import (
    Refusal,
    no_such,
    not_allowed,
    not_implemented,
    precondition_failed,
)
from hopback.broker.server.replies import REPLY_TO
from hopback.broker.server.transaction import ChannelTransaction
from hopback.topology.model import Binding, Exchange, Queue, QueueType

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.server.channel import ServerChannel
    from hopback.fields import FieldValue

__all__ = ["HANDLERS", "queue_from"]

_Arguments: TypeAlias = dict[str, Any]
_Handler: TypeAlias = "Callable[[ServerChannel, _Arguments], None]"

HANDLERS: dict[str, _Handler] = {}
"""What is done for each method."""


def _on(name: str) -> Callable[[_Handler], _Handler]:
    def register(handler: _Handler) -> _Handler:
        HANDLERS[name] = handler
        return handler

    return register


def _ignore(_channel: ServerChannel, _asked: _Arguments) -> None:
    """The wire has seen to it."""


HANDLERS.update(dict.fromkeys(("channel.flow-ok", "basic.cancel-ok"), _ignore))


def queue_from(name: str, asked: _Arguments, arguments: dict[str, FieldValue]) -> Queue:
    """The queue that a declaration describes; a type that we do not know is left to the node."""
    kind, told = QueueType.CLASSIC, arguments.get("x-queue-type")
    if isinstance(told, str) and told in tuple(QueueType):
        kind = QueueType(told)
        arguments = {key: value for key, value in arguments.items() if key != "x-queue-type"}
    return Queue(
        name,
        kind,
        durable=asked["durable"],
        exclusive=asked["exclusive"],
        auto_delete=asked["auto_delete"],
        arguments=arguments,
    )


def _named(channel: ServerChannel, name: str) -> str:
    """The queue of that name; an empty one means the queue that the channel declared last."""
    if name:
        return name
    if not channel.last_queue:
        channel.refuse(Refusal(404, "NOT_FOUND - no previously declared queue"))
    return channel.last_queue


# Channels.


@_on("channel.flow")
def _flow(channel: ServerChannel, asked: _Arguments) -> None:
    if not asked["active"]:
        channel.refuse(not_implemented("active=false"))
    channel.reply("channel.flow-ok", asked, active=True)


# Exchanges.


@_on("exchange.declare")
def _declare_exchange(channel: ServerChannel, asked: _Arguments) -> None:
    name = asked["exchange"]
    if not asked["passive"]:
        channel.check_declared(name in channel.state.node.wiring.exchanges)
    exchange = Exchange(
        name,
        asked["type"],
        durable=asked["durable"],
        auto_delete=asked["auto_delete"],
        internal=asked["internal"],
        arguments=asked["arguments"],
    )
    channel.state.declare_exchange(exchange, passive=asked["passive"])
    channel.reply("exchange.declare-ok", asked)


@_on("exchange.delete")
def _delete_exchange(channel: ServerChannel, asked: _Arguments) -> None:
    channel.state.delete_exchange(asked["exchange"], if_unused=asked["if_unused"])
    channel.reply("exchange.delete-ok", asked)


def _exchange_binding(asked: _Arguments) -> Binding:
    return Binding(
        asked["source"],
        asked["destination"],
        asked["routing_key"],
        to_exchange=True,
        arguments=asked["arguments"],
    )


@_on("exchange.bind")
def _bind_exchange(channel: ServerChannel, asked: _Arguments) -> None:
    channel.check_declared(False)
    channel.state.bind(_exchange_binding(asked))
    channel.reply("exchange.bind-ok", asked)


@_on("exchange.unbind")
def _unbind_exchange(channel: ServerChannel, asked: _Arguments) -> None:
    channel.state.unbind(_exchange_binding(asked))
    channel.reply("exchange.unbind-ok", asked)


# Queues.


@_on("queue.declare")
def _declare_queue(channel: ServerChannel, asked: _Arguments) -> None:
    name, node = asked["queue"], channel.state.node
    if name.startswith(REPLY_TO):
        _declare_reply_queue(channel, name, asked)
        return
    if asked["passive"]:
        name = _named(channel, name)
    else:
        channel.check_declared(name in node.queues)
    queue = queue_from(name, asked, asked["arguments"])
    found = channel.state.declare_queue(queue, passive=asked["passive"])
    channel.last_queue = found.name
    channel.reply(
        "queue.declare-ok",
        asked,
        queue=found.name,
        message_count=len(found.ready),
        consumer_count=found.consumer_count,
    )


def _declare_reply_queue(channel: ServerChannel, name: str, asked: _Arguments) -> None:
    """Who replies may look whether somebody still waits."""
    waiting = channel.client.house.replies.asker(name) is not None
    if name != REPLY_TO and not waiting:
        channel.refuse(no_such(channel.state.node.place("queue", name)))
    channel.reply("queue.declare-ok", asked, queue=name, message_count=0, consumer_count=1)


def _queue_binding(channel: ServerChannel, asked: _Arguments) -> Binding:
    queue = _named(channel, asked["queue"])
    key = asked["routing_key"] or ("" if asked["queue"] else queue)
    return Binding(asked["exchange"], queue, key, arguments=asked["arguments"])


@_on("queue.bind")
def _bind_queue(channel: ServerChannel, asked: _Arguments) -> None:
    channel.check_declared(False)
    channel.state.bind(_queue_binding(channel, asked))
    channel.reply("queue.bind-ok", asked)


@_on("queue.unbind")
def _unbind_queue(channel: ServerChannel, asked: _Arguments) -> None:
    channel.state.unbind(_queue_binding(channel, asked))
    channel.reply("queue.unbind-ok", asked)


@_on("queue.purge")
def _purge_queue(channel: ServerChannel, asked: _Arguments) -> None:
    count = channel.state.purge_queue(_named(channel, asked["queue"]))
    channel.reply("queue.purge-ok", asked, message_count=count)


@_on("queue.delete")
def _delete_queue(channel: ServerChannel, asked: _Arguments) -> None:
    name = _named(channel, asked["queue"])
    with channel.client.answer_first():
        count = channel.state.delete_queue(
            name, if_unused=asked["if_unused"], if_empty=asked["if_empty"]
        )
        channel.reply("queue.delete-ok", asked, message_count=count)


# Consuming.


@_on("basic.qos")
def _qos(channel: ServerChannel, asked: _Arguments) -> None:
    if asked["prefetch_size"]:
        channel.refuse(not_implemented(f"prefetch_size!=0 ({asked['prefetch_size']})"))
    channel.state.qos(asked["prefetch_count"], whole_channel=asked["global_"])
    channel.reply("basic.qos-ok", asked)


@_on("basic.consume")
def _consume(channel: ServerChannel, asked: _Arguments) -> None:
    """The answer goes before the first delivery."""
    if asked["queue"] == REPLY_TO:
        replies = channel.client.house.replies
        tag = replies.begin(channel, asked["consumer_tag"], no_ack=asked["no_ack"])
        channel.reply("basic.consume-ok", asked, consumer_tag=tag)
        return
    most = channel.client.house.limits.consumers
    if len(channel.state.consumers) >= most:
        channel.refuse(not_allowed(f"reached maximum ({most}) of consumers per channel"))
    channel.hold()
    try:
        tag = channel.state.consume(
            _named(channel, asked["queue"]),
            tag=asked["consumer_tag"],
            no_ack=asked["no_ack"],
            exclusive=asked["exclusive"],
            arguments=asked["arguments"],
        )
        channel.reply("basic.consume-ok", asked, consumer_tag=tag)
    finally:
        channel.let_go()


@_on("basic.cancel")
def _cancel(channel: ServerChannel, asked: _Arguments) -> None:
    tag = asked["consumer_tag"]
    channel.client.house.replies.end(channel, tag)
    channel.state.cancel(tag)
    channel.forget_tag(tag)
    channel.reply("basic.cancel-ok", asked, consumer_tag=tag)


@_on("basic.get")
def _get(channel: ServerChannel, asked: _Arguments) -> None:
    taken = channel.state.get(_named(channel, asked["queue"]), no_ack=asked["no_ack"])
    if taken is None:
        channel.reply("basic.get-empty", asked)
    elif channel.is_open:
        client = channel.client
        method = client.envelopes.get_ok(channel.number, taken, len(taken.source.ready))
        raw = client.envelopes.properties(taken.properties)
        client.core.reply_with_content(channel.number, "basic.get-ok", method, raw, taken.body)


@_on("basic.recover")
def _recover(channel: ServerChannel, asked: _Arguments) -> None:
    _recover_async(channel, asked)
    channel.reply("basic.recover-ok", asked)


@_on("basic.recover-async")
def _recover_async(channel: ServerChannel, asked: _Arguments) -> None:
    if not asked["requeue"]:
        channel.refuse(not_implemented("requeue=false"))
    channel.state.recover()


# Confirms and transactions: a channel has one or the other.


@_on("confirm.select")
def _select_confirms(channel: ServerChannel, asked: _Arguments) -> None:
    if channel.transaction is not None:
        channel.refuse(precondition_failed("cannot switch from tx to confirm mode"))
    channel.confirming = True
    channel.reply("confirm.select-ok", asked)


@_on("tx.select")
def _select_transactions(channel: ServerChannel, asked: _Arguments) -> None:
    if channel.confirming:
        channel.refuse(precondition_failed("cannot switch from confirm to tx mode"))
    if channel.transaction is None:
        channel.transaction = ChannelTransaction()
    channel.reply("tx.select-ok", asked)


@_on("tx.commit")
def _commit(channel: ServerChannel, asked: _Arguments) -> None:
    _transaction(channel).commit()
    channel.reply("tx.commit-ok", asked)


@_on("tx.rollback")
def _roll_back(channel: ServerChannel, asked: _Arguments) -> None:
    _transaction(channel).roll_back()
    channel.reply("tx.rollback-ok", asked)


def _transaction(channel: ServerChannel) -> ChannelTransaction:
    if channel.transaction is None:
        refusal = precondition_failed("channel is not transactional")
        channel.state.fail(refusal)
        raise refusal
    return channel.transaction
