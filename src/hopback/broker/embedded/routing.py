"""The exchanges and bindings of a node. The routing table is built on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.embedded.arguments import inequivalent, inequivalent_argument
from hopback.broker.embedded.refusal import (
    access_refused,
    command_invalid,
    no_such,
    precondition_failed,
    type_name,
    where,
)
from hopback.broker.embedded.settings import policy_for
from hopback.topology.model import Binding, Exchange, ExchangeType, Policy
from hopback.topology.routing import PREDECLARED, RoutingTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hopback.broker.embedded.profile import Profile

_KINDS = frozenset({"exchanges", "all"})
_MATCHES = ("all", "any", "all-with-x", "any-with-x")


class Routing:
    """Exchanges and bindings. Only the names of queues are known here."""

    def __init__(
        self,
        queues: Mapping[str, object],
        policies: Callable[[], Iterable[Policy]],
        profile: Profile,
        vhost: str,
    ) -> None:
        self.exchanges: dict[str, Exchange] = {exchange.name: exchange for exchange in PREDECLARED}
        self._queues = queues
        self._policies = policies
        self._profile = profile
        self._vhost = vhost
        self._bindings: dict[tuple[str, ...], Binding] = {}
        self._table: RoutingTable | None = None

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """All bindings except the implicit ones of the default exchange."""
        return tuple(self._bindings.values())

    @property
    def binding_count(self) -> int:
        return len(self._bindings)

    @property
    def table(self) -> RoutingTable:
        if self._table is None:
            exchanges = [self._with_policy(each) for each in self.exchanges.values()]
            self._table = RoutingTable(exchanges, self._queues, self._bindings.values())
        return self._table

    def _place(self, exchange: str) -> str:
        return where("exchange", exchange, self._vhost)

    def invalidate(self) -> None:
        """Discard the routing table, because queues or policies have changed."""
        self._table = None

    def _with_policy(self, exchange: Exchange) -> Exchange:
        """Return the exchange. A policy may have set its alternate exchange."""
        policy = policy_for(self._policies(), exchange.name, _KINDS)
        alternate = None if policy is None else policy.definition.get("alternate-exchange")
        if alternate is None or "alternate-exchange" in exchange.arguments:
            return exchange
        arguments = {**exchange.arguments, "alternate-exchange": alternate}
        return Exchange(exchange.name, exchange.type, arguments=arguments)

    def declare(self, exchange: Exchange, *, passive: bool = False) -> None:
        """Create an exchange, or check that it exists with the same settings."""
        _refuse_default(exchange.name)
        found = self.exchanges.get(exchange.name)
        if passive:
            if found is None:
                raise no_such(self._place(exchange.name))
        elif found is not None:
            place = self._place(exchange.name)
            for name in ("type", "durable", "auto_delete", "internal"):
                received, current = getattr(exchange, name), getattr(found, name)
                if received != current:
                    raise inequivalent(place, name, received, current)
            refusal = inequivalent_argument(
                place, exchange.arguments, found.arguments, ("alternate-exchange",)
            )
            if refusal is not None:
                raise refusal
        else:
            _check_new(exchange, self._profile, self._place(exchange.name))
            self.exchanges[exchange.name] = exchange
            self.invalidate()

    def delete(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange and its bindings. Does nothing if it does not exist."""
        _refuse_default(name)
        if name not in self.exchanges:
            return
        if name.startswith("amq."):
            raise access_refused(f"deletion of system {self._place(name)} not allowed")
        if if_unused and any(binding.source == name for binding in self.bindings):
            raise precondition_failed(f"{self._place(name)} in use")
        del self.exchanges[name]
        self._forget(
            lambda binding: (
                binding.source == name or (binding.to_exchange and binding.destination == name)
            )
        )

    def bind(self, binding: Binding) -> None:
        """Add a binding. The source and destination must exist."""
        _refuse_default(binding.source)
        if binding.to_exchange:
            _refuse_default(binding.destination)
        exchange = self.exchanges.get(binding.source)
        if exchange is None:
            raise no_such(self._place(binding.source))
        kind, ends = (
            ("exchange", self.exchanges) if binding.to_exchange else ("queue", self._queues)
        )
        if binding.destination not in ends:
            raise no_such(where(kind, binding.destination, self._vhost))
        if exchange.type == ExchangeType.HEADERS:
            match = binding.arguments.get("x-match", "all")
            if match not in _MATCHES:
                raise precondition_failed(
                    f'Invalid x-match field value <<"{match}">>;'
                    " expected all, any, all-with-x, or any-with-x"
                )
        self._bindings.setdefault(_key(binding), binding)
        self.invalidate()

    def unbind(self, binding: Binding) -> None:
        """Remove a binding. Does nothing if it does not exist."""
        _refuse_default(binding.source)
        if binding.to_exchange:
            _refuse_default(binding.destination)
        key = _key(binding)
        self._forget(lambda each: _key(each) == key)

    def queue_gone(self, queue: str) -> None:
        self._forget(lambda each: not each.to_exchange and each.destination == queue)

    def _forget(self, unwanted: Callable[[Binding], bool]) -> None:
        """Remove bindings, and auto-delete exchanges that have no bindings left."""
        sources = {each.source for each in self.bindings if unwanted(each)}
        self._bindings = {key: each for key, each in self._bindings.items() if not unwanted(each)}
        self.invalidate()
        for name in sorted(sources):
            exchange = self.exchanges.get(name)
            in_use = any(each.source == name for each in self.bindings)
            if exchange is not None and exchange.auto_delete and not in_use:
                self.delete(name)


def _key(binding: Binding) -> tuple[str, ...]:
    arguments = repr(sorted(binding.arguments.items()))
    kind = "exchange" if binding.to_exchange else "queue"
    return binding.source, kind, binding.destination, binding.routing_key, arguments


def _refuse_default(name: str) -> None:
    if not name:
        raise access_refused("operation not permitted on the default exchange")


def _check_new(exchange: Exchange, profile: Profile, place: str) -> None:
    if exchange.name.startswith("amq."):
        raise access_refused(f"exchange name '{exchange.name}' contains reserved prefix 'amq.*'")
    if exchange.type not in set(ExchangeType):
        problem = f"unknown exchange type '{exchange.type}'"
        if profile.unknown_exchange_type_ends_connection:
            raise command_invalid(problem)
        raise precondition_failed(problem)
    alternate = exchange.arguments.get("alternate-exchange", "")
    if not isinstance(alternate, str):
        raise precondition_failed(
            f"invalid type '{type_name(alternate)}' for arg 'alternate-exchange' in {place}"
        )
