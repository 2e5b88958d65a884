"""What the web applications publish with: it declares the topology itself, so no part has to start first."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Self

from hopback import Publisher
from hopback.broker.declare import declare
from hopback.errors import AccessRefused, BrokerError, ConnectionFailed, TopologyError

if TYPE_CHECKING:
    from hopback import Broker, Message, Topology
    from hopback.broker.supervise import OnState

__all__ = ["TopologyPublisher"]

_LOG = logging.getLogger("hopback.systems")
_PATIENCE_S = 5.0
"""How long a client waits for a broker that is away: shorter than most clients wait for an answer."""
_AGAIN_S = 1.0
"""Between two attempts to declare: a broker that starts is served soon, one that is away costs little."""


class TopologyPublisher:
    """Publishes into a topology that it declares once the broker is there; an async context manager.

    Where the broker has something else under one of the names, or the user may not declare, that is
    logged, and what is there is published to: the consumers say what is wrong with it.
    """

    def __init__(
        self,
        broker: Broker,
        topology: Topology,
        *,
        name: str,
        timeout: float = _PATIENCE_S,
        on_state: OnState | None = None,
    ) -> None:
        self._broker = broker
        self._topology = topology
        self._name = name
        self._timeout = timeout
        self._publisher = Publisher(broker, name=name, timeout=timeout, on_state=on_state)
        self._declared = asyncio.Event()
        self._declaring: asyncio.Task[None] | None = None
        self._trouble = ""

    async def __aenter__(self) -> Self:
        self._publisher.start()
        self._declaring = asyncio.create_task(self._declare(), name=f"{self._name} declares")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._declaring is not None:
            self._declaring.cancel()
            await asyncio.gather(self._declaring, return_exceptions=True)
        await self._publisher.close()

    async def publish(self, message: Message) -> None:
        """Publish and wait for the confirm; raises what `Publisher.publish` raises."""
        if not self._declared.is_set():
            try:
                async with asyncio.timeout(self._timeout):
                    await self._declared.wait()
            except TimeoutError:
                raise ConnectionFailed(f"nothing was sent: {self._trouble}") from None
        await self._publisher.publish(message)

    async def _declare(self) -> None:
        while not self._declared.is_set():
            try:
                connection = await self._broker.connect(f"{self._name} declares")
                try:
                    await declare(connection, self._topology)
                finally:
                    await connection.close()
                self._declared.set()
            except (TopologyError, AccessRefused) as error:
                _LOG.error("%s publishes to what is there: %s", self._name, error)
                self._declared.set()
            except (BrokerError, OSError) as error:
                self._trouble = str(error)
                await asyncio.sleep(_AGAIN_S)
