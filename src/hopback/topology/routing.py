"""Message routing according to the rules of RabbitMQ.

`#` matches zero or more words, `*` matches exactly one. An empty routing key has no words. Headers
exchanges compare both types and values. Messages that do not match any binding are routed to the
alternate exchange. A binding to another exchange counts as a match, even if that exchange does not
route the message to a queue. A queue receives a message only once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, TypeAlias

from hopback.errors import HopbackError
from hopback.fields import FieldValue, Headers, Timestamp
from hopback.topology.model import Binding, Exchange, ExchangeType, Topology

PREDECLARED: tuple[Exchange, ...] = (
    Exchange("amq.direct", ExchangeType.DIRECT),
    Exchange("amq.fanout", ExchangeType.FANOUT),
    Exchange("amq.headers", ExchangeType.HEADERS),
    Exchange("amq.match", ExchangeType.HEADERS),
    Exchange("amq.rabbitmq.trace", ExchangeType.TOPIC, internal=True),
    Exchange("amq.topic", ExchangeType.TOPIC),
)
"""The exchanges that exist in every virtual host. They have to be passed to `RoutingTable`
explicitly.
"""

_NO_HEADERS: Headers = MappingProxyType({})
_MEMO_SIZE = 4096  # maximum number of cached routes, to limit memory usage

# The name of a destination, and whether it is an exchange.
_Destination: TypeAlias = "tuple[str, bool]"
_Matcher: TypeAlias = "Callable[[str, Headers], Iterable[_Destination]]"


def topic_matches(pattern: str, key: str) -> bool:
    """Return True if a topic pattern matches a routing key."""
    if "*" not in pattern and "#" not in pattern:
        return pattern == key
    return pattern == "#" or any(True for _ in _trie_of(pattern).match(key, _NO_HEADERS))


@lru_cache(maxsize=1024)
def _trie_of(pattern: str) -> _Trie:
    """Return the trie of a pattern. It is cached, because plans use the same patterns repeatedly."""
    trie = _Trie()
    trie.add(pattern, ("", False))
    return trie


def headers_match(arguments: Headers, headers: Headers) -> bool:
    """Return True if the arguments of a headers binding match the headers of a message.

    `x-match` defaults to `all`. Keys that start with `x-` are ignored, unless it is `all-with-x` or
    `any-with-x`.
    """
    kind = arguments.get("x-match")
    with_x = kind in ("all-with-x", "any-with-x")
    found = (
        # None matches any value.
        key in headers and (wanted is None or _comparable(wanted) == _comparable(headers[key]))
        for key, wanted in arguments.items()
        if key != "x-match" and (with_x or not key.startswith("x-"))
    )
    return any(found) if kind in ("any", "any-with-x") else all(found)


def _comparable(value: FieldValue) -> object:
    """Return the value with its type. All integer types are equal, and so are all float types."""
    match value:
        case bool() | Timestamp():
            return type(value), int(value)
        case Decimal():
            return Decimal, value.as_tuple()
        case Mapping():
            return Mapping, {key: _comparable(inner) for key, inner in value.items()}
        case list() | tuple():
            return list, [_comparable(inner) for inner in value]
    return next((kind for kind in (int, float, str) if isinstance(value, kind)), type(value)), value


class RoutingTable:
    """An immutable routing table.

    Bindings of undeclared objects are ignored. Exchange types of plugins are treated like fanout.
    """

    __slots__ = ("_alternates", "_bound", "_by_headers", "_matchers", "_memo", "_own")

    def __init__(
        self, exchanges: Iterable[Exchange], queues: Iterable[str], bindings: Iterable[Binding]
    ) -> None:
        declared = {exchange.name: exchange for exchange in exchanges if exchange.name}
        self._own = {name: (name,) for name in queues}
        # Group the bindings by source. Skip bindings of undeclared objects.
        bound: defaultdict[str, list[Binding]] = defaultdict(list)
        for binding in bindings:
            if binding.destination in (declared if binding.to_exchange else self._own):
                bound[binding.source].append(binding)
        self._bound = {name: frozenset(map(_destination, bound[name])) for name in declared}
        self._alternates = {
            name: str(each.arguments.get("alternate-exchange", ""))
            for name, each in declared.items()
        }
        self._matchers = {name: _matcher(each, bound[name]) for name, each in declared.items()}
        # Find the exchanges that lead to a headers exchange.
        leading_to = defaultdict(set)
        for name in declared:
            for onward in (each.destination for each in bound[name] if each.to_exchange):
                leading_to[onward].add(name)
            leading_to[self._alternates[name]].add(name)
        found = {name for name, each in declared.items() if _kind(each) == ExchangeType.HEADERS}
        waiting = list(found)
        while waiting:
            fresh = leading_to[waiting.pop()] - found
            found |= fresh
            waiting.extend(fresh)
        self._by_headers = frozenset(found)
        self._memo: dict[tuple[str, str], tuple[str, ...]] = {}

    def route(
        self, exchange: str, routing_key: str, headers: Headers = _NO_HEADERS
    ) -> tuple[str, ...]:
        """Return the names of the queues that receive a message.

        Raises:
            KeyError: If the exchange does not exist.
        """
        if not exchange:
            return self._own.get(routing_key, ())
        known = self._memo.get((exchange, routing_key))
        if known is None:
            known = self._walk(exchange, (routing_key,), headers)
            # Routes that depend on headers cannot be cached.
            if exchange not in self._by_headers:
                if len(self._memo) >= _MEMO_SIZE:
                    self._memo.clear()
                self._memo[exchange, routing_key] = known
        return known

    def route_keys(
        self, exchange: str, routing_keys: Sequence[str], headers: Headers = _NO_HEADERS
    ) -> tuple[str, ...]:
        """Return the queues that receive a message with several routing keys (`CC`, `BCC`).

        The alternate exchange is only used if none of the keys match.
        """
        if exchange:
            return self._walk(exchange, routing_keys, headers)
        return tuple(sorted({key for key in routing_keys if key in self._own}))

    def reachable(self, exchange: str, routing_key: str) -> tuple[str, ...] | None:
        """Return all queues that a message can reach, depending on its headers.

        Returns None if the exchange does not exist.
        """
        if exchange and exchange not in self._matchers:
            return None
        if exchange not in self._by_headers:
            return self.route(exchange, routing_key)
        return self._all_behind((exchange,))

    def reachable_with(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Return all queues that can receive a copy of a message for one of the given queues."""
        leading = {
            name for name in self._matchers if not set(queues).isdisjoint(self._all_behind((name,)))
        }
        return self._all_behind(leading)

    def _all_behind(self, exchanges: Iterable[str]) -> tuple[str, ...]:
        """Return all queues that are bound to the exchanges, directly or indirectly."""
        seen, queues = set(exchanges), set[str]()
        waiting = list(seen)
        while waiting:
            source = waiting.pop()
            for name, is_exchange in (*self._bound[source], *self._instead(source)):
                if not is_exchange:
                    queues.add(name)
                elif name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return tuple(sorted(queues))

    def _walk(self, exchange: str, keys: Sequence[str], headers: Headers) -> tuple[str, ...]:
        """Follow the bindings of an exchange. Each exchange is visited only once."""
        if exchange not in self._matchers:
            raise KeyError(exchange)
        seen, waiting, queues = {exchange}, [exchange], set[str]()
        while waiting:
            leaving = waiting.pop()
            matcher = self._matchers[leaving]
            matched = {found for key in keys for found in matcher(key, headers)}
            for name, is_exchange in matched or self._instead(leaving):
                if not is_exchange:
                    queues.add(name)
                elif name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return tuple(sorted(queues))

    def _instead(self, exchange: str) -> Iterator[_Destination]:
        """Yield the alternate exchange if it exists."""
        alternate = self._alternates[exchange]
        if alternate in self._matchers:
            yield alternate, True


def _kind(exchange: Exchange) -> str:
    """Return the type of an exchange. For delayed exchanges, this is the type in `x-delayed-type`."""
    if exchange.type == "x-delayed-message":
        return str(exchange.arguments.get("x-delayed-type", ""))
    return exchange.type


def _matcher(exchange: Exchange, bindings: Sequence[Binding]) -> _Matcher:
    """Create a function that matches the bindings of an exchange."""
    match _kind(exchange):
        case ExchangeType.DIRECT:
            by_key: defaultdict[str, set[_Destination]] = defaultdict(set)
            for binding in bindings:
                by_key[binding.routing_key].add(_destination(binding))
            return lambda key, _headers: by_key.get(key, ())
        case ExchangeType.TOPIC:
            trie = _Trie()
            for binding in bindings:
                trie.add(binding.routing_key, _destination(binding))
            return trie.match
        case ExchangeType.HEADERS:
            asked = [(binding.arguments, _destination(binding)) for binding in bindings]
            return lambda _key, headers: [
                to for wanted, to in asked if headers_match(wanted, headers)
            ]
    everything = frozenset(map(_destination, bindings))
    return lambda _key, _headers: everything


def _destination(binding: Binding) -> _Destination:
    return binding.destination, binding.to_exchange


def _words(key: str) -> list[str]:
    """Split a routing key into words. An empty key has no words."""
    return key.split(".") if key else []


class _TrieNode:
    """A node of a trie. `repeats` is True after a `#`, which matches any number of words."""

    __slots__ = ("branches", "destinations", "repeats")

    def __init__(self, *, repeats: bool = False) -> None:
        self.branches: dict[str, _TrieNode] = {}
        self.destinations: set[_Destination] = set()
        self.repeats = repeats

    def reach(self) -> Iterator[_TrieNode]:
        """Yield this node and the nodes reached by a `#` that matches no words."""
        node: _TrieNode | None = self
        while node is not None:
            yield node
            node = node.branches.get("#")

    def after(self, word: str) -> Iterator[_TrieNode]:
        """Yield the nodes reached by matching one word."""
        if self.repeats:
            yield self
        # No special handling is needed if the word itself is `#` or `*`.
        for branch in {word, "*"} & self.branches.keys():
            yield from self.branches[branch].reach()


class _Trie:
    """A trie with the patterns of a topic exchange."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _TrieNode()

    def add(self, pattern: str, destination: _Destination) -> None:
        node = self._root
        for word in _words(pattern):
            node = node.branches.setdefault(word, _TrieNode(repeats=word == "#"))
        node.destinations.add(destination)

    def match(self, key: str, _headers: Headers) -> Iterator[_Destination]:
        places = set(self._root.reach())
        for word in _words(key):
            places = {onward for place in places for onward in place.after(word)}
        for place in places:
            yield from place.destinations


class CannotSimulate(HopbackError):
    """Raised when a simulation does not have a queue, or when no message can be routed to it."""

    remedy: ClassVar[str] = "Name a queue that has a plan, and an exchange and key that lead to it."


@dataclass(frozen=True, slots=True)
class Entrance:
    """An exchange and a routing key."""

    exchange: str
    routing_key: str


def find_entrance(
    topology: Topology, queue: str, exchange: str | None = None, routing_key: str | None = None
) -> Entrance:
    """Return the exchange and routing key of a route to `queue`.

    Exchanges that are only used for retries and dead letters are tried last. If there is no routing
    key, one is derived from the bindings, such as `orders.example` for `orders.*`.

    Raises:
        CannotSimulate: If there is no such route.
    """
    table = RoutingTable(topology.exchanges, [q.name for q in topology.queues], topology.bindings)
    plans = topology.plans
    inner = {plan.parking.exchange for plan in plans}
    inner |= {route.exchange for plan in plans for tier in plan.tiers for route in tier.routes}
    names = [each.name for each in topology.exchanges if not each.internal]
    # Try exchanges for producers first and the default exchange last.
    exchanges = [*sorted(names, key=lambda name: name in inner), ""]
    bindings = sorted(topology.bindings, key=lambda each: each.destination != queue)
    # Create keys from the bindings. Start with the bindings of the queue.
    keys = []
    for pattern in (each.routing_key for each in bindings):
        words = ["example" if word == "*" else word for word in pattern.split(".") if word != "#"]
        keys.append(".".join(words) if words or not pattern else "example")
    keys.append(queue)
    for name in exchanges if exchange is None else (exchange,):
        for key in keys if routing_key is None else (routing_key,):
            with suppress(KeyError):  # the exchange does not exist
                if queue in table.route(name, key):
                    return Entrance(name, key)
    through = "no exchange leads" if exchange is None else f"exchange {exchange!r} does not lead"
    with_key = "" if routing_key is None else f" with routing key {routing_key!r}"
    bound = [each for each in topology.bindings if each.destination == queue]
    ways = ", ".join(f"{each.source!r} by {each.routing_key!r}" for each in bound) or "none"
    raise CannotSimulate(f"{through} to queue {queue!r}{with_key}. Bindings of the queue: {ways}")
