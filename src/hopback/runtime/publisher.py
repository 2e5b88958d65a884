"""Publish messages from programs that don't have an `App`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from hopback.broker.message_sender import MessageSender
from hopback.runtime.address import broker_at
from hopback.runtime.context import PublishOptions, compose
from hopback.runtime.publish_arguments import explain_arguments

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from hopback.broker.port import Broker
    from hopback.broker.supervise import Backoff, OnState
    from hopback.durations import Duration
    from hopback.runtime.codecs import Codecs


class Publisher(MessageSender):
    """Publishes messages with confirms.

    Use this as an async context manager. Entering it waits for the first connection and raises an
    exception if that fails. If the connection is lost later, it is reopened automatically.

    Args:
        broker: A broker or the URL of RabbitMQ.
        timeout: Maximum time to wait for a channel when publishing.
        codecs: Codecs for encoding payloads.
    """

    def __init__(
        self,
        broker: Broker | str,
        *,
        name: str = "hopback publisher",
        timeout: Duration = 30,
        codecs: Codecs | None = None,
        backoff: Backoff | None = None,
        on_state: OnState | None = None,
    ) -> None:
        super().__init__(
            broker_at(broker), name=name, timeout=timeout, backoff=backoff, on_state=on_state
        )
        self._codecs = codecs

    @explain_arguments
    def publish(
        self,
        routing_key: str,
        payload: object,
        *,
        exchange: str = "",
        **options: Unpack[PublishOptions],
    ) -> Coroutine[Any, Any, None]:
        """Publish a message and wait for the confirm. Must be awaited.

        The message is published to the queue `routing_key` unless an exchange is given.

        Raises:
            PublishFailed: If the message is not confirmed.
        """
        message = compose(routing_key, payload, exchange=exchange, codecs=self._codecs, **options)
        return self.send(message)
