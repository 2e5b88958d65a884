"""Routing of a publish: the rules of RabbitMQ over plain data.

`#` matches zero or more words of a routing key, `*` exactly one. An empty routing key has no words.
A headers exchange compares types as well as values. An alternate exchange receives messages that
matched no binding of its exchange. A binding to another exchange counts as a match even if that
exchange routes to no queue. Each queue is reached once, however many paths lead to it.
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
"""The exchanges every virtual host is born with. A `RoutingTable` holds them only when given."""

_NO_HEADERS: Headers = MappingProxyType({})
_MEMO_SIZE = 4096  # more keys than most systems have. It bounds memory for unlimited keys

# A destination of a binding: its name, and whether it is an exchange.
_Destination: TypeAlias = "tuple[str, bool]"
_Matcher: TypeAlias = "Callable[[str, Headers], Iterable[_Destination]]"


def topic_matches(pattern: str, key: str) -> bool:
    """Whether a topic exchange takes `key` for a binding of `pattern`."""
    if "*" not in pattern and "#" not in pattern:
        return pattern == key
    return pattern == "#" or any(True for _ in _trie_of(pattern).match(key, _NO_HEADERS))


@lru_cache(maxsize=1024)
def _trie_of(pattern: str) -> _Trie:
    """Return the cached trie of one pattern, because a plan repeats the same few patterns."""
    trie = _Trie()
    trie.add(pattern, ("", False))
    return trie


def headers_match(arguments: Headers, headers: Headers) -> bool:
    """Whether a headers exchange takes `headers` for a binding of `arguments`.

    Without `x-match`, or with one it does not know, the broker means `all`. Keys that begin with
    `x-` take part only with `all-with-x` and `any-with-x`.
    """
    kind = arguments.get("x-match")
    with_x = kind in ("all-with-x", "any-with-x")
    found = (
        # A void in the binding asks only that the header is there.
        key in headers and (wanted is None or _comparable(wanted) == _comparable(headers[key]))
        for key, wanted in arguments.items()
        if key != "x-match" and (with_x or not key.startswith("x-"))
    )
    return any(found) if kind in ("any", "any-with-x") else all(found)


def _comparable(value: FieldValue) -> object:
    """The value beside its type: the broker takes all integers for one type, all floats too."""
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
    """Exchanges, queue names and bindings, prepared for fast lookups. Immutable.

    A binding from or to an undeclared object routes to no queue. An exchange of a plugin's type is
    assumed to reach everything bound to it.
    """

    __slots__ = ("_alternates", "_bound", "_by_headers", "_matchers", "_memo", "_own")

    def __init__(
        self, exchanges: Iterable[Exchange], queues: Iterable[str], bindings: Iterable[Binding]
    ) -> None:
        declared = {exchange.name: exchange for exchange in exchanges if exchange.name}
        self._own = {name: (name,) for name in queues}
        # The bindings whose both ends exist, by the exchange they leave from.
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
        # The exchanges from which a headers exchange can be reached.
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
        """Return the names of the queues a publish reaches. Raises KeyError for a missing exchange."""
        if not exchange:
            return self._own.get(routing_key, ())
        known = self._memo.get((exchange, routing_key))
        if known is None:
            known = self._walk(exchange, (routing_key,), headers)
            # The answer is kept unless headers have a part in it.
            if exchange not in self._by_headers:
                if len(self._memo) >= _MEMO_SIZE:
                    self._memo.clear()
                self._memo[exchange, routing_key] = known
        return known

    def route_keys(
        self, exchange: str, routing_keys: Sequence[str], headers: Headers = _NO_HEADERS
    ) -> tuple[str, ...]:
        """The same for a message with several routing keys (`CC`, `BCC`).

        The alternate exchange takes it only when none of the keys matched.
        """
        if exchange:
            return self._walk(exchange, routing_keys, headers)
        return tuple(sorted({key for key in routing_keys if key in self._own}))

    def reachable(self, exchange: str, routing_key: str) -> tuple[str, ...] | None:
        """Return the queues a publish can reach with any headers, or None for a missing exchange."""
        if exchange and exchange not in self._matchers:
            return None
        if exchange not in self._by_headers:
            return self.route(exchange, routing_key)
        return self._all_behind((exchange,))

    def reachable_with(self, queues: Iterable[str]) -> tuple[str, ...]:
        """The queues that a publish can reach which also reaches one of these, by any exchange and key."""
        leading = {
            name for name in self._matchers if not set(queues).isdisjoint(self._all_behind((name,)))
        }
        return self._all_behind(leading)

    def _all_behind(self, exchanges: Iterable[str]) -> tuple[str, ...]:
        """Every queue that is bound to one of these, over exchanges in between and alternates."""
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
        """Follow the bindings from exchange to exchange, each exchange once."""
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
        """The alternate exchange, if there is one and it is declared."""
        alternate = self._alternates[exchange]
        if alternate in self._matchers:
            yield alternate, True


def _kind(exchange: Exchange) -> str:
    """Return the routing type. A delayed exchange holds messages and then routes as another type."""
    if exchange.type == "x-delayed-message":
        return str(exchange.arguments.get("x-delayed-type", ""))
    return exchange.type


def _matcher(exchange: Exchange, bindings: Sequence[Binding]) -> _Matcher:
    """Build the matcher of one exchange from its bindings."""
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
    """Split a routing key into words. An empty key has none, though `a.` has two."""
    return key.split(".") if key else []


class _TrieNode:
    """A node in the trie of patterns. `repeats` is set after a `#`, which matches any further word."""

    __slots__ = ("branches", "destinations", "repeats")

    def __init__(self, *, repeats: bool = False) -> None:
        self.branches: dict[str, _TrieNode] = {}
        self.destinations: set[_Destination] = set()
        self.repeats = repeats

    def reach(self) -> Iterator[_TrieNode]:
        """This place and those that a `#` reaches without taking a word."""
        node: _TrieNode | None = self
        while node is not None:
            yield node
            node = node.branches.get("#")

    def after(self, word: str) -> Iterator[_TrieNode]:
        """The places reached by taking one word."""
        if self.repeats:
            yield self
        # A word of the key that itself reads `#` or `*` needs no care: the branch takes it anyway.
        for branch in {word, "*"} & self.branches.keys():
            yield from self.branches[branch].reach()


class _Trie:
    """The patterns of one topic exchange, matched together word by word."""

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
    """A simulation has no queue to watch, or no way for a message to get there."""

    remedy: ClassVar[str] = "Name a queue that has a plan, and an exchange and key that lead to it."


@dataclass(frozen=True, slots=True)
class Entrance:
    """An exchange and a routing key."""

    exchange: str
    routing_key: str


def find_entrance(
    topology: Topology, queue: str, exchange: str | None = None, routing_key: str | None = None
) -> Entrance:
    """Return the first route into `queue` that matches the arguments. Raises CannotSimulate if
    none.

    Exchanges that only retries and dead letters use are tried last. A missing key is made from the
    bindings: `orders.*` is tried as `orders.example`.
    """
    table = RoutingTable(topology.exchanges, [q.name for q in topology.queues], topology.bindings)
    plans = topology.plans
    inner = {plan.parking.exchange for plan in plans}
    inner |= {route.exchange for plan in plans for tier in plan.tiers for route in tier.routes}
    names = [each.name for each in topology.exchanges if not each.internal]
    # Those for producers first, the default exchange last.
    exchanges = [*sorted(names, key=lambda name: name in inner), ""]
    bindings = sorted(topology.bindings, key=lambda each: each.destination != queue)
    # Keys made from the bindings, those of the queue itself first, and the queue's own name.
    keys = []
    for pattern in (each.routing_key for each in bindings):
        words = ["example" if word == "*" else word for word in pattern.split(".") if word != "#"]
        keys.append(".".join(words) if words or not pattern else "example")
    keys.append(queue)
    for name in exchanges if exchange is None else (exchange,):
        for key in keys if routing_key is None else (routing_key,):
            with suppress(KeyError):  # an exchange that was given and does not exist
                if queue in table.route(name, key):
                    return Entrance(name, key)
    through = "no exchange leads" if exchange is None else f"exchange {exchange!r} does not lead"
    with_key = "" if routing_key is None else f" with routing key {routing_key!r}"
    bound = [each for each in topology.bindings if each.destination == queue]
    ways = ", ".join(f"{each.source!r} by {each.routing_key!r}" for each in bound) or "none"
    raise CannotSimulate(f"{through} to queue {queue!r}{with_key}. Bindings of the queue: {ways}")
