"""Rules about names: used twice, reserved, or too easily confused."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from hopback.topology.hazards.phrases import exchange_place, listed, plan_place, queue_place
from hopback.topology.hazards.rule import HazardRule, Hit, errors, infos
from hopback.topology.routing import PREDECLARED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.hazards.analysis import Analysis

__all__ = ["RULES"]

_LONGEST_BYTES = 255  # the longest name that AMQP 0-9-1 can carry
_GENERATED = "amq.gen"


def _clashes(analysis: Analysis) -> Iterator[Hit]:
    topology = analysis.declared
    for names, place in (
        ([each.name for each in topology.queues], queue_place),
        ([each.name for each in topology.exchanges], exchange_place),
        ([each.queue for each in topology.plans], plan_place),
    ):
        for name, count in Counter(names).items():
            if count == 1:
                continue
            yield Hit(
                place(name),
                "Declared more than once: which of the declarations holds depends on their order,"
                " and a broker refuses the second if they differ.",
                "Keep one of them.",
            )
    yield from _two_roles(analysis)


def _two_roles(analysis: Analysis) -> Iterator[Hit]:
    """A retry queue must be nothing else: whatever enters it goes back after a while."""
    parking = {plan.parking.queue for plan in analysis.plans.values()}
    for name in sorted(analysis.users.keys() & (parking | analysis.plans.keys())):
        other = "a consumed queue" if name in analysis.plans else "a dead-letter queue"
        yield Hit(
            queue_place(name),
            f"This retry queue is also {other}: what rests or is handled here is sent back when"
            " its wait is over.",
            "Give the retry queue a name of its own.",
        )


def _unusable(analysis: Analysis) -> Iterator[Hit]:
    queues = [each.name for each in analysis.declared.queues]
    exchanges = [each.name for each in analysis.declared.exchanges]
    born = {exchange.name for exchange in PREDECLARED}
    for name in queues:
        if not name.startswith(_GENERATED):
            yield from _bad_name(name, queue_place(name))
    for name in exchanges:
        if name not in born:
            yield from _bad_name(name, exchange_place(name))


def _bad_name(name: str, place: str) -> Iterator[Hit]:
    if not name:
        problem = "An empty name means the default exchange, or asks the broker to make one up"
    elif name.startswith("amq."):
        problem = "Names that begin with `amq.` are the broker's own, which refuses this one"
    elif len(name.encode(errors="replace")) > _LONGEST_BYTES:
        problem = f"The name is longer than {_LONGEST_BYTES} bytes, which no broker can read"
    else:
        return
    yield Hit(place, f"{problem}.", "Choose another name.")


def _similar(analysis: Analysis) -> Iterator[Hit]:
    alike: defaultdict[str, set[str]] = defaultdict(set)
    for name in analysis.queues:
        alike[name.strip().casefold()].add(name)
    for names in alike.values():
        if len(names) > 1:
            yield Hit(
                queue_place(*names),
                f"{listed(names)} are different queues to the broker and easily taken for one"
                " another.",
                "Spell them alike if one queue is meant.",
            )


RULES = (
    HazardRule("name-clash", errors(), _clashes),
    HazardRule("name-refused", errors(), _unusable),
    HazardRule("names-alike", infos(), _similar),
)
"""What can be wrong with names."""
