"""Bindings of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from hopback.errors import InvalidDeclaration, Problem
from hopback.topology.model import Binding, Exchange, ExchangeType

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers


@dataclass(frozen=True, slots=True)
class Feed:
    """An exchange that a queue is bound to. Use `topic`, `direct`, `fanout` or `headers` to create
    one.

    `source` is another exchange that this exchange is bound to.
    """

    exchange: Exchange
    keys: tuple[str, ...] = ("",)
    match: Headers | None = None
    source: Feed | None = None

    @classmethod
    def topic(cls, exchange: str, *keys: str, source: Feed | None = None) -> Feed:
        """Bind to a topic exchange with one or more patterns, such as `order.*` or `order.#`."""
        _refuse_none(exchange, keys, "at least one pattern (`#` for everything)")
        return cls(Exchange(exchange, ExchangeType.TOPIC), keys, source=source)

    @classmethod
    def direct(cls, exchange: str, *keys: str, source: Feed | None = None) -> Feed:
        """Bind to a direct exchange with one or more routing keys."""
        _refuse_none(exchange, keys, "at least one routing key")
        return cls(Exchange(exchange, ExchangeType.DIRECT), keys, source=source)

    @classmethod
    def fanout(cls, exchange: str, *, source: Feed | None = None) -> Feed:
        """Bind to a fanout exchange."""
        _refuse_none(exchange, ("",), "")
        return cls(Exchange(exchange, ExchangeType.FANOUT), source=source)

    @classmethod
    def headers(
        cls,
        exchange: str,
        wanted: Mapping[str, FieldValue],
        *,
        match: Literal["all", "any"] = "all",
        source: Feed | None = None,
    ) -> Feed:
        """Bind to a headers exchange. Messages must have all of the headers, or any of them."""
        if match not in ("all", "any"):
            raise InvalidDeclaration(
                (Problem("match", '"all" or "any"', repr(match)),), where=f"feed {exchange!r}"
            )
        _refuse_none(exchange, wanted, "at least one header (an empty match accepts all messages)")
        arguments: dict[str, FieldValue] = {"x-match": match, **wanted}
        return cls(Exchange(exchange, ExchangeType.HEADERS), match=arguments, source=source)

    def bindings(self, destination: str, *, to_exchange: bool = False) -> tuple[Binding, ...]:
        """Return the bindings to a queue or exchange, including the bindings of the source."""
        own = (
            Binding(self.exchange.name, destination, key, to_exchange, self.match or {})
            for key in self.keys
        )
        further = (
            ()
            if self.source is None
            else self.source.bindings(self.exchange.name, to_exchange=True)
        )
        return (*own, *further)

    def exchanges(self) -> tuple[Exchange, ...]:
        further = () if self.source is None else self.source.exchanges()
        return (self.exchange, *further)


Bind: TypeAlias = "Mapping[str, str | Iterable[str]] | Feed | Iterable[Feed]"
"""Values of `bind=`: topic exchanges with their patterns, or feeds."""


def feeds_of(bind: Bind) -> tuple[Feed, ...]:
    """Convert the value of `bind=` to feeds."""
    if isinstance(bind, Feed):
        return (bind,)
    if isinstance(bind, Mapping):
        wanted = (
            (name, (keys,) if isinstance(keys, str) else tuple(keys)) for name, keys in bind.items()
        )
        return tuple(Feed(Exchange(name, ExchangeType.TOPIC), keys) for name, keys in wanted)
    feeds = tuple(bind)
    given: tuple[object, ...] = feeds  # may be anything without type checks
    strange = [one for one in given if not isinstance(one, Feed)]
    if strange:
        expected = '{"exchange": "routing.key"}, or feeds like Feed.fanout("exchange")'
        raise InvalidDeclaration((Problem("bind", expected, repr(bind)),), where="bind")
    return feeds


def _refuse_none(exchange: str, wanted: object, expected: str) -> None:
    if not exchange:
        problem = Problem("exchange", "a name (the default exchange needs no binding)", "''")
        raise InvalidDeclaration((problem,), where="feed")
    if not wanted:
        raise InvalidDeclaration((Problem("keys", expected, "none"),), where=f"feed {exchange!r}")
