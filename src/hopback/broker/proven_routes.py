"""Remember which publishes cannot close a channel.

RabbitMQ answers a publish to a missing exchange, without the right to write, or with a body that is too
large by closing the channel. The outcome of every other publish in flight on it is then unknown. A publish
may share a channel with others only if all of these were confirmed before on the same connection:

- its exchange, because the exchange exists and the user may write to it,
- its routing key, because rights on topic exchanges depend on the key. A key is not remembered for exchanges
  that are known not to be topic exchanges,
- a body of at least its size, because the limit is one number for the whole node.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from hopback.message import Message

Route: TypeAlias = str | tuple[str, str]
"""Exchange and routing key, or the exchange alone where rights do not depend on the key."""

_WITHOUT_TOPIC_RIGHTS = ("", "amq.direct", "amq.fanout", "amq.headers", "amq.match")
"""Exchanges of every broker that are not topic exchanges. The empty name is the default exchange."""

_REMEMBERED = 5_000
"""Routes per generation. Two generations are kept, about 2 MB. The next publish on a forgotten route proves
it again."""

_FIRST_PROOF_S = 0.1
"""Seconds that a publish waits for the first publish on the same new route, in order to follow it on the
shared channel. It then goes apart itself: a queue that confirms slowly must not hold up others."""


class ProvenRoutes:
    """The routes and the body size that the broker has accepted on one connection.

    `keyless` names exchanges that are known not to be topic exchanges.
    """

    __slots__ = ("_before", "_first", "_keyless", "_recent", "largest")

    def __init__(self, keyless: Collection[str] = ()) -> None:
        self._keyless = frozenset((*_WITHOUT_TOPIC_RIGHTS, *keyless))
        self._recent: set[Route] = set()
        self._before: set[Route] = set()
        self._first: dict[Route, asyncio.Future[None]] = {}
        self.largest: int = -1
        """The size of the largest body that was accepted, in bytes. -1 before the first one."""

    def route(self, message: Message) -> Route:
        """The part of the message that rights depend on."""
        exchange = message.exchange
        return exchange if exchange in self._keyless else (exchange, message.routing_key)

    def cover(self, message: Message) -> bool:
        """Whether the broker has already accepted a publish on the same route, and a body of at least this
        size.
        """
        if len(message.body) > self.largest:
            return False
        exchange = message.exchange
        # As `route`, without a call: this is asked for each publish.
        route = exchange if exchange in self._keyless else (exchange, message.routing_key)
        if route in self._recent:
            return True
        if route not in self._before:
            return False
        self._remember(route)
        return True

    def add(self, message: Message) -> None:
        """The broker has accepted this publish: it confirmed, returned or nacked it."""
        self._remember(self.route(message))
        self.largest = max(self.largest, len(message.body))

    def begin(self, message: Message) -> Route | None:
        """Begin the first publish on this route. None if another first publish is in progress."""
        route = self.route(message)
        if route in self._first:
            return None
        self._first[route] = asyncio.get_running_loop().create_future()
        return route

    def end(self, route: Route) -> None:
        """The first publish on this route has its outcome."""
        self._first.pop(route).set_result(None)

    @asynccontextmanager
    async def turn(self, message: Message) -> AsyncIterator[bool]:
        """Wait for the first publish on a new route. Yields whether the route is still unproven."""
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
        """Forget everything: an accepted route was refused, so an exchange or a right is gone."""
        self._recent.clear()
        self._before.clear()
        self.largest = -1
