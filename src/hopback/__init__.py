"""Hopback makes RabbitMQ consumers dependable.

The names below are the front door; each is loaded when it is first asked for, so that
`import hopback` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.errors import HopbackError
    from hopback.message import Delivery, Message, Properties
    from hopback.patterns import DESIGNS, recommended
    from hopback.policy.outcome import Done, Outcome, Park, Retry, Snooze
    from hopback.topology.check import Finding, Severity, check
    from hopback.topology.model import Binding, Exchange, Queue, QueueType, Topology
    from hopback.topology.plan import Plan
    from hopback.version import BrokerVersion

__all__ = [
    "DESIGNS",
    "Binding",
    "BrokerVersion",
    "Delivery",
    "Done",
    "Exchange",
    "Finding",
    "HopbackError",
    "Message",
    "Outcome",
    "Park",
    "Plan",
    "Properties",
    "Queue",
    "QueueType",
    "Retry",
    "Severity",
    "Snooze",
    "Topology",
    "__version__",
    "check",
    "recommended",
]

__version__ = "0.1.0"

_HOMES = {
    "hopback.errors": ("HopbackError",),
    "hopback.message": ("Delivery", "Message", "Properties"),
    "hopback.patterns": ("DESIGNS", "recommended"),
    "hopback.policy.outcome": ("Done", "Outcome", "Park", "Retry", "Snooze"),
    "hopback.topology.check": ("Finding", "Severity", "check"),
    "hopback.topology.model": ("Binding", "Exchange", "Queue", "QueueType", "Topology"),
    "hopback.topology.plan": ("Plan",),
    "hopback.version": ("BrokerVersion",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Load a public name from its home on first use, and keep it."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    # A submodule of the same name (`topology.check`) must not hide the function.
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    """Everything that can be had, loaded or not."""
    return sorted(set(globals()) | set(__all__))
