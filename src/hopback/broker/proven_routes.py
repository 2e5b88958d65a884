"""Find out which publishes could close a channel.

RabbitMQ closes the channel if a message is published to a missing exchange, if the user has no
write permission, or if the body is too large. The fate of the other messages on
this channel is then unknown. For this reason, a message is only published on a shared channel if a
previous publish on the same connection proves that it is safe. This means that the broker has
already accepted:

- the exchange, so it exists and the user may write to it,
- the routing key, because permissions for topic exchanges depend on it. It is ignored for exchanges that are
  known to have a different type,
- a body that was at least as large. The limit is the same for all queues of the node.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from hopback.message import Message

Route: TypeAlias = str | tuple[str, str]
"""The exchange and routing key, or only the exchange if permissions don't depend on the key."""

_WITHOUT_TOPIC_RIGHTS = ("", "amq.direct", "amq.fanout", "amq.headers", "amq.match")
"""Predeclared exchanges that are not topic exchanges. The default exchange has an empty name."""

_REMEMBERED = 5_000
"""Number of routes per generation. We keep two generations, which need about 2 MB. A route that was
dropped has to be proven again.
"""

_FIRST_PROOF_S = 0.1
"""How long a publish waits for the first one on the same new route, so that it can use the shared
channel. After this number of seconds it uses its own channel, because a queue may be slow to
confirm.
"""


class ProvenRoutes:
    """The routes and the body size that the broker has accepted on a connection.

    `keyless` contains the names of exchanges that are known not to be topic exchanges.
    """

    __slots__ = ("_before", "_first", "_keyless", "_recent", "largest")

    def __init__(self, keyless: Collection[str] = ()) -> None:
        self._keyless = frozenset((*_WITHOUT_TOPIC_RIGHTS, *keyless))
        self._recent: set[Route] = set()
        self._before: set[Route] = set()
        self._first: dict[Route, asyncio.Future[None]] = {}
        self.largest: int = -1
        """The size of the largest accepted body in bytes. -1 if there was none yet."""

    def route(self, message: Message) -> Route:
        """Return the parts of a message that permissions depend on."""
        exchange = message.exchange
        return exchange if exchange in self._keyless else (exchange, message.routing_key)

    def cover(self, message: Message) -> bool:
        """Return True if the broker has already accepted this route and a body of this size."""
        if len(message.body) > self.largest:
            return False
        exchange = message.exchange
        # The same as `route`, but inlined, because this is called for each publish.
        route = exchange if exchange in self._keyless else (exchange, message.routing_key)
        if route in self._recent:
            return True
        if route not in self._before:
            return False
        self._remember(route)
        return True

    def add(self, message: Message) -> None:
        """Remember that the broker has accepted this publish, i.e. it was confirmed, returned or
        nacked.
        """
        self._remember(self.route(message))
        self.largest = max(self.largest, len(message.body))

    def begin(self, message: Message) -> Route | None:
        """Start the first publish on a route. Returns None if another task is already doing this."""
        route = self.route(message)
        if route in self._first:
            return None
        self._first[route] = asyncio.get_running_loop().create_future()
        return route

    def end(self, route: Route) -> None:
        """The first publish on this route is done."""
        self._first.pop(route).set_result(None)

    @asynccontextmanager
    async def turn(self, message: Message) -> AsyncIterator[bool]:
        """Wait for the first publish on a new route. Yields True if the route has not been proven."""
        first = self._first.get(self.route(message))
        if first is not None:
            await asyncio.wait({first}, timeout=_FIRST_PROOF_S)
            yield not self.cover(message)
            return
        route = self.begin(message)
        try:
            yield True
        finally:
            if route is not None:
                self.end(route)

    def _remember(self, route: Route) -> None:
        if len(self._recent) >= _REMEMBERED:
            self._before, self._recent = self._recent, set()
        self._recent.add(route)

    def clear(self) -> None:
        """Forget all routes. One of them was refused, so an exchange or a permission was removed."""
        self._recent.clear()
        self._before.clear()
        self.largest = -1
