"""Publishing from programs with an event loop that do not run an `App`."""

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
    """Publishes on a supervised connection. Use it as an async context manager.

    `broker` is a broker or the address of a RabbitMQ. Entering the context waits for the first
    connection and raises the error if it fails. A connection lost later is opened again. `start` and
    `close` do not wait for the broker. `publish` and `send` wait at most `timeout` for a
    usable channel. `codecs` encode payloads by their content type.
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
        """Publish to the queue `routing_key`, or to an exchange, and wait for the confirm. To be
        awaited.

        Raises PublishFailed with the reason if the message was not confirmed.
        """
        message = compose(routing_key, payload, exchange=exchange, codecs=self._codecs, **options)
        return self.send(message)
