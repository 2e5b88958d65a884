"""Publishing from programs with an event loop that do not run an `App`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from hopback.broker.message_sender import MessageSender
from hopback.runtime.context import PublishOptions, compose
from hopback.runtime.publish_arguments import explain_arguments

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any


class Publisher(MessageSender):
    """Publishes on a supervised connection. Use it as an async context manager.

    Entering the context waits for the first connection and raises the error if it fails. A
    connection lost later is opened again. `publish` and `send` wait at most `timeout` for a usable
    channel.
    """

    @explain_arguments
    def publish(
        self,
        routing_key: str,
        payload: object,
        *,
        exchange: str = "",
        **options: Unpack[PublishOptions],
    ) -> Coroutine[Any, Any, None]:
        """Publish a payload to a queue, or to an exchange, and wait for the confirm. To be awaited.

        Raises PublishFailed with the reason if the message was not confirmed.
        """
        return self.send(compose(routing_key, payload, exchange=exchange, **options))
