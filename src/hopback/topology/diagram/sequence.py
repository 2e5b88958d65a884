"""The life of a message that always fails, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.topology.diagram.labels import Ids, label
from hopback.topology.diagram.subject import subject
from hopback.topology.durations import format_duration
from hopback.topology.plan import Leave, Return
from hopback.topology.wording import waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan, Tier

__all__ = ["draw_sequence"]


def draw_sequence(topology: Topology, queue: str | None = None) -> str:
    """The way of a message of this queue, by default the first with a plan, from publish to park."""
    return "\n".join(_Sequence(topology, subject(topology, queue)).lines()) + "\n"


class _Sequence:
    """One sequence diagram in the making."""

    def __init__(self, topology: Topology, plan: Plan) -> None:
        self.plan = plan
        self.ids = Ids()
        sources = (item.source for item in topology.bindings if item.destination == plan.queue)
        self.source = next(iter(sources), "")

    def lines(self) -> Iterator[str]:
        """All lines of the diagram."""
        yield "sequenceDiagram"
        yield "    autonumber"
        yield from (f"    {line}" for line in self.participants())
        yield from (f"    {line}" for line in self.story())

    def participants(self) -> Iterator[str]:
        """Who takes part, from left to right."""
        yield "participant producer as producer"
        yield f"participant {self.exchange()} as {self.exchange_name()}"
        yield f"participant {self.queue(self.plan.queue)} as {label(self.plan.queue)}"
        yield "participant consumer as consumer"
        waiting = (tier.routes[0].queue for tier, _ in waits(self.plan))
        for name in dict.fromkeys((*waiting, self.plan.parking.queue)):
            yield f"participant {self.queue(name)} as {label(name)}"

    def story(self) -> Iterator[str]:
        """What happens, in order."""
        main = self.queue(self.plan.queue)
        yield f"producer->>{self.exchange()}: publish"
        yield f"{self.exchange()}->>{main}: route"
        attempt = 1
        for tier, laps in waits(self.plan):
            yield from self.laps(tier, attempt, laps)
            attempt += laps
        yield f"{main}->>consumer: deliver (attempt {attempt} of {self.plan.attempts})"
        yield "consumer--xconsumer: the handler fails"
        yield from self.park()

    def laps(self, tier: Tier, attempt: int, laps: int) -> Iterator[str]:
        """One or several rounds through a tier."""
        last = attempt + laps - 1
        which = f"attempt {attempt}" if laps == 1 else f"attempts {attempt} to {last}"
        lap = self.lap(tier, f"{which} of {self.plan.attempts}")
        if laps == 1:
            yield from lap
        else:
            yield f"loop {laps} times"
            yield from (f"    {line}" for line in lap)
            yield "end"

    def lap(self, tier: Tier, which: str) -> Iterator[str]:
        """Deliver, fail, wait, return."""
        main, waiting = self.queue(self.plan.queue), self.queue(tier.routes[0].queue)
        yield f"{main}->>consumer: deliver ({which})"
        yield "consumer--xconsumer: the handler fails"
        yield from self.leave(self.plan.leave, waiting)
        yield f"Note over {waiting}: waits {format_duration(tier.delay_ms)}"
        if self.plan.returns is Return.EXCHANGE:
            yield f"{waiting}-->>{main}: expired, back through an exchange"
        else:
            yield f"{waiting}-->>{main}: expired, back to its queue"

    def leave(self, by: Leave, end: str) -> Iterator[str]:
        """How a failed message gets from its queue to another."""
        main = self.queue(self.plan.queue)
        if by is Leave.PUBLISH:
            yield f"consumer->>{end}: publish"
            yield f"{end}-->>consumer: confirm"
            yield f"consumer->>{main}: ack"
        else:
            yield f"consumer->>{main}: reject"
            yield f"{main}-->>{end}: dead-letter"

    def park(self) -> Iterator[str]:
        """How a hopeless message comes to rest."""
        end = self.queue(self.plan.parking.queue)
        yield from self.leave(self.plan.parking.by, end)
        yield f"Note over {end}: parked until it is re-driven or discarded"

    def exchange(self) -> str:
        """The id of the exchange that feeds the queue."""
        return self.ids.of("x", self.source)

    def exchange_name(self) -> str:
        """Its label."""
        return label(self.source) if self.source else "default exchange"

    def queue(self, name: str) -> str:
        """The id of a queue."""
        return self.ids.of("q", name)
