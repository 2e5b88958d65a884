"""Small scenarios that several tests play."""

from __future__ import annotations

from typing import Any

from hopback.rehearse import Load, Outage, RateStep, Scenario

__all__ = ["scenario"]


def scenario(*, outage: tuple[float, float] | None = None, **given: Any) -> Scenario:
    """One queue `orders`. Keys of a load go there, the others to the scenario."""
    fields = Scenario.__dataclass_fields__
    whole = {name: value for name, value in given.items() if name in fields}
    load = {name: value for name, value in given.items() if name not in fields}
    rate = load.pop("rate", 5.0)
    queue = load.pop("queue", "orders")
    loads = (Load(queue, (RateStep(0.0, rate),), **{"handler_s": 0.1, **load}),)
    outages = () if outage is None else (Outage(*outage),)
    return Scenario(**{"loads": loads, "duration_s": 7200.0, "outages": outages, **whole})
