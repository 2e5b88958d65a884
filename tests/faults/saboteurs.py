"""Saboteurs. Each one breaks a promise between the runtime and the broker, which the checkers must
detect.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from hopback.headers.names import ATTEMPTS, REDRIVES
from tests.faults.ledger.checks import Promise

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.message import Delivery, Message

__all__ = ["SABOTEURS", "sabotage"]


class _Passing:
    """Forwards all calls to the object that it wraps."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Connection(_Passing):
    def __init__(self, real: Any, channel: type[Any]) -> None:
        super().__init__(real)
        self._channel = channel

    async def open_channel(self) -> Any:
        return self._channel(await self._real.open_channel())


def sabotage(channel: type[Any]) -> Callable[[Any], Any]:
    """Return a function that wraps connections so that their channels are of the given class."""
    return lambda connection: _Connection(connection, channel)


def _is_retry(message: Message) -> bool:
    return ".retry" in message.routing_key


def _done() -> asyncio.Future[None]:
    fate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    fate.set_result(None)
    return fate


class _SwallowsRetries(_Passing):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        """Pretend that a retry was stored."""
        if _is_retry(message):
            return _done()
        return self._real.publish(message, mandatory=mandatory)


class _ConfirmsTooSoon(_Passing):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        """Confirm messages three seconds before they are stored. If the connection is cut in
        between, they are lost.
        """
        loop = asyncio.get_running_loop()
        loop.call_later(3, lambda: self._store(message))
        return _done()

    def _store(self, message: Message) -> None:
        try:
            self._real.publish(message).add_done_callback(lambda fate: fate.exception())
        except Exception:
            return


class _PublishesTwice(_Passing):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        """Publish each retry twice."""
        if _is_retry(message):
            self._real.publish(message).add_done_callback(lambda fate: fate.exception())
        return self._real.publish(message, mandatory=mandatory)


class _ForgetsAttempts(_Passing):
    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self._forgotten: set[str | None] = set()

    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        """Don't count the first failure of a message."""
        headers = dict(message.properties.headers)
        if _is_retry(message) and message.properties.message_id not in self._forgotten:
            self._forgotten.add(message.properties.message_id)
            headers[ATTEMPTS] = 0
        properties = replace(message.properties, headers=headers)
        return self._real.publish(replace(message, properties=properties), mandatory=mandatory)


class _SkipsAnAttempt(_Passing):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        """Count the first failure twice."""
        headers = dict(message.properties.headers)
        if headers.get(ATTEMPTS) == 1 and _is_retry(message):
            headers[ATTEMPTS] = 2
        properties = replace(message.properties, headers=headers)
        return self._real.publish(replace(message, properties=properties), mandatory=mandatory)


class _SendsElsewhere(_Passing):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        """Send a retry of one service to the other service."""
        if message.routing_key.startswith("left.retry"):
            message = replace(message, routing_key="right")
        return self._real.publish(message, mandatory=mandatory)


class _FeedsTheExchange(_Passing):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        """Publish a retry to the shared exchange, from which the audit receives it as well."""
        if message.routing_key.startswith("left.retry"):
            message = replace(message, exchange="ledger", routing_key="left.order")
        return self._real.publish(message, mandatory=mandatory)


class _SkipsTheWait(_Passing):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        """Publish a retry directly to its main queue."""
        if _is_retry(message):
            message = replace(message, routing_key=message.routing_key.partition(".retry")[0])
        return self._real.publish(message, mandatory=mandatory)


class _DropsAHeader(_Passing):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        """Remove a header of the producer."""
        headers = {k: v for k, v in message.properties.headers.items() if k != "ledger-text"}
        properties = replace(message.properties, headers=headers)
        return self._real.publish(replace(message, properties=properties), mandatory=mandatory)


class _ParksInnocents(_Passing):
    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Reject messages instead of acking them. A hardened queue then parks them."""
        self._real.nack(tag, requeue=False)


class _NeverAcks(_Passing):
    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Omit every third ack."""
        if tag % 3:
            self._real.ack(tag)


class _TurnsOver(_Passing):
    async def consume(self, queue: str, on_delivery: Any, **options: Any) -> Any:
        """Swap pairs of deliveries."""
        held: list[Delivery] = []

        def deliver_swapped(delivery: Delivery) -> None:
            if held or delivery.tag % 2 == 0:
                on_delivery(delivery)
                while held:
                    on_delivery(held.pop())
                return
            held.append(delivery)
            loop = asyncio.get_running_loop()
            loop.call_later(5, lambda: on_delivery(held.pop()) if held else None)

        return await self._real.consume(queue, deliver_swapped, **options)


class _DropsWhatItSaw(_Passing):
    _seen: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, set[object]]] = WeakKeyDictionary()

    async def consume(self, queue: str, on_delivery: Any, **options: Any) -> Any:
        """Ack a retry that was delivered before, even if it was not handled."""
        seen = self._seen.setdefault(asyncio.get_running_loop(), set())

        def deliver_unseen(delivery: Delivery) -> None:
            headers = delivery.properties.headers
            token = (
                queue,
                delivery.properties.message_id,
                headers.get(ATTEMPTS),
                headers.get(REDRIVES),
            )
            if headers.get(ATTEMPTS) and token in seen:
                self._real.ack(delivery.tag)
            else:
                seen.add(token)
                on_delivery(delivery)

        return await self._real.consume(queue, deliver_unseen, **options)


SABOTEURS: dict[type[Any], Promise] = {
    _SwallowsRetries: Promise.LOST,
    _ConfirmsTooSoon: Promise.LOST,
    _PublishesTwice: Promise.DUPLICATED,
    _ForgetsAttempts: Promise.BEYOND,
    _SkipsAnAttempt: Promise.BEYOND,
    _SendsElsewhere: Promise.STRAYED,
    _FeedsTheExchange: Promise.DUPLICATED,
    _SkipsTheWait: Promise.EARLY,
    _DropsAHeader: Promise.ALTERED,
    _ParksInnocents: Promise.STRAYED,
    _NeverAcks: Promise.DUPLICATED,
    _TurnsOver: Promise.ORDER,
    _DropsWhatItSaw: Promise.LOST,
}
"""The promises that the saboteurs break."""
