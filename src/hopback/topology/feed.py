"""The feeds of a queue: an exchange of any type, the wanted keys or headers, and its own feed."""

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
    """An exchange that feeds a queue. Made by `topic`, `direct`, `fanout` and `headers`.

    `source` is a feed of this exchange: another exchange that is bound to it.
    """

    exchange: Exchange
    keys: tuple[str, ...] = ("",)
    match: Headers | None = None
    source: Feed | None = None

    @classmethod
    def topic(cls, exchange: str, *keys: str, source: Feed | None = None) -> Feed:
        """Messages of a topic exchange whose routing key fits a pattern: `order.*`, `order.#`."""
        _refuse_none(exchange, keys, "at least one pattern (`#` for everything)")
        return cls(Exchange(exchange, ExchangeType.TOPIC), keys, source=source)

    @classmethod
    def direct(cls, exchange: str, *keys: str, source: Feed | None = None) -> Feed:
        """Messages of a direct exchange with exactly one of these routing keys."""
        _refuse_none(exchange, keys, "at least one routing key")
        return cls(Exchange(exchange, ExchangeType.DIRECT), keys, source=source)

    @classmethod
    def fanout(cls, exchange: str, *, source: Feed | None = None) -> Feed:
        """Every message of a fanout exchange."""
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
        """Messages of a headers exchange that have these headers: all of them, or any one."""
        if match not in ("all", "any"):
            raise InvalidDeclaration(
                (Problem("match", '"all" or "any"', repr(match)),), where=f"feed {exchange!r}"
            )
        _refuse_none(exchange, wanted, "at least one header (an empty match takes everything)")
        arguments: dict[str, FieldValue] = {"x-match": match, **wanted}
        return cls(Exchange(exchange, ExchangeType.HEADERS), match=arguments, source=source)

    def bindings(self, destination: str, *, to_exchange: bool = False) -> tuple[Binding, ...]:
        """The bindings that lead from here to a queue or an exchange, and those that lead here."""
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
"""The argument `bind=`: topic exchanges with the wanted keys, or feeds of any type."""


def feeds_of(bind: Bind) -> tuple[Feed, ...]:
    """Convert the argument `bind=` to feeds."""
    if isinstance(bind, Feed):
        return (bind,)
    if isinstance(bind, Mapping):
        wanted = (
            (name, (keys,) if isinstance(keys, str) else tuple(keys)) for name, keys in bind.items()
        )
        return tuple(Feed(Exchange(name, ExchangeType.TOPIC), keys) for name, keys in wanted)
    feeds = tuple(bind)
    given: tuple[object, ...] = feeds  # of a program without type checks, anything
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
