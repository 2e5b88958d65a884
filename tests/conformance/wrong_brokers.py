"""Brokers with one error each, for tests of the suite."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.port import Broker
    from hopback.message import Delivery, Message
    from hopback.topology.model import Queue
    from hopback.version import BrokerVersion

__all__ = ["WRONGS", "Liar", "WrongBroker"]


class _Wrapper:
    """Forwards everything to the wrapped object."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@dataclass
class WrongBroker:
    """A broker whose channels are wrapped in a class with one error."""

    real: Broker
    channel: Callable[[Any], Any]

    @property
    def address(self) -> str:
        return self.real.address

    async def connect(self, name: str = "hopback") -> Any:
        """Return a connection that opens wrong channels."""
        return _WrongConnection(await self.real.connect(name), self.channel)


class _WrongConnection(_Wrapper):
    def __init__(self, real: Any, channel: Callable[[Any], Any]) -> None:
        super().__init__(real)
        self._channel = channel

    async def open_channel(self) -> Any:
        return self._channel(await self._real.open_channel())


@dataclass
class Liar:
    """A broker that reports a false version."""

    real: Broker
    version: BrokerVersion

    @property
    def address(self) -> str:
        return self.real.address

    async def connect(self, name: str = "hopback") -> Any:
        """Return a connection with the false version."""
        connection = _Wrapper(await self.real.connect(name))
        connection.version = self.version  # type: ignore[attr-defined]
        return connection


class _AcksInsteadOfNacks(_Wrapper):
    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        self._real.ack(tag, multiple=multiple)


class _IgnoresRequeue(_Wrapper):
    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        self._real.nack(tag, requeue=True, multiple=multiple)


class _IgnoresMultiple(_Wrapper):
    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._real.ack(tag)


class _IgnoresMandatory(_Wrapper):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        return self._real.publish(message, mandatory=False)


class _IgnoresExpiration(_Wrapper):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        never = replace(message, properties=replace(message.properties, expiration=None))
        return self._real.publish(never, mandatory=mandatory)


class _LosesHeaders(_Wrapper):
    def publish(self, message: Message, *, mandatory: bool = True) -> Any:
        bare = replace(message, properties=replace(message.properties, headers={}))
        return self._real.publish(bare, mandatory=mandatory)


class _IgnoresPrefetch(_Wrapper):
    async def qos(self, prefetch: int) -> None:
        await self._real.qos(0)


class _IgnoresArguments(_Wrapper):
    async def declare_queue(self, queue: Queue, *, passive: bool = False) -> Any:
        return await self._real.declare_queue(replace(queue, arguments={}), passive=passive)


class _ForgetsRedelivery(_Wrapper):
    async def get(self, queue: str) -> Delivery | None:
        found = await self._real.get(queue)
        return None if found is None else _Fresh(found)


class _Fresh(_Wrapper):
    redelivered = False


class _KeepsOnClose(_Wrapper):
    async def close(self) -> None:
        """Leave the channel open with its unacked messages."""


class _RejectsAsNack(_Wrapper):
    def reject(self, tag: int, *, requeue: bool) -> None:
        self._real.nack(tag, requeue=requeue)


WRONGS: dict[type[Any], set[str]] = {
    _AcksInsteadOfNacks: {"1.1a", "1.6a", "7.1", "9.3e"},
    _IgnoresRequeue: {"1.1a", "1.14", "9.3e"},
    _IgnoresMultiple: {"9.3d", "9.3f"},
    _IgnoresMandatory: {"9.1a", "9.1c", "9.3a"},
    _IgnoresExpiration: {"1.2", "3.2a", "4.1", "4.3a", "4.4a"},
    _LosesHeaders: {"1.9a", "2.3a", "3.1", "3.2b", "10.3a", "A.23"},
    _IgnoresPrefetch: {"9.9a", "9.9c", "9.9e"},
    _IgnoresArguments: {"1.1b", "1.1c", "4.7a", "5.9d", "6.1a", "9.2a", "9.8c"},
    _ForgetsRedelivery: {"7.1", "8.1", "9.8i", "9.8j"},
    _KeepsOnClose: {"5.2a", "5.3c", "7.2d", "7.4c"},
    _RejectsAsNack: {"5.3b", "5.1"},
}
"""Each error, and the rows that must detect it (the last only on 4.3)."""
