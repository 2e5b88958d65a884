"""The public test kit: applications and simulations in virtual time, and the conformance suite.

The names below are loaded when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.broker.embedded import EmbeddedBroker, Fault
    from hopback.testing.app_thread import AppThread
    from hopback.testing.broker_thread import BrokerThread
    from hopback.testing.captured import Happening, Tally
    from hopback.testing.kit import AppTest, in_virtual_time

__all__ = [
    "AppTest",
    "AppThread",
    "BrokerThread",
    "EmbeddedBroker",
    "Fault",
    "Happening",
    "Tally",
    "in_virtual_time",
]

_HOMES = {
    "hopback.broker.embedded": ("EmbeddedBroker", "Fault"),
    "hopback.testing.app_thread": ("AppThread",),
    "hopback.testing.broker_thread": ("BrokerThread",),
    "hopback.testing.captured": ("Happening", "Tally"),
    "hopback.testing.kit": ("AppTest", "in_virtual_time"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Load a public name from its home on first use, and keep it."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    """Everything that can be had, loaded or not."""
    return sorted(set(globals()) | set(__all__))
