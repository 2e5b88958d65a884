"""The public test kit: applications and simulations in virtual time.

The names below are loaded when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.broker.embedded import EmbeddedBroker, Fault
    from hopback.testing.captured import Happening, Tally
    from hopback.testing.kit import (
        AppTest,
        assert_no_dead_letters,
        assert_recovered_within,
        in_virtual_time,
        rehearse,
    )
    from hopback.testing.plugin import StartsApp
    from hopback.testing.threads import AppThread, BrokerThread

__all__ = [
    "AppTest",
    "AppThread",
    "BrokerThread",
    "EmbeddedBroker",
    "Fault",
    "Happening",
    "StartsApp",
    "Tally",
    "assert_no_dead_letters",
    "assert_recovered_within",
    "in_virtual_time",
    "rehearse",
]

_HOMES = {
    "hopback.broker.embedded": ("EmbeddedBroker", "Fault"),
    "hopback.testing.captured": ("Happening", "Tally"),
    "hopback.testing.kit": (
        "AppTest",
        "assert_no_dead_letters",
        "assert_recovered_within",
        "in_virtual_time",
        "rehearse",
    ),
    "hopback.testing.plugin": ("StartsApp",),
    "hopback.testing.threads": ("AppThread", "BrokerThread"),
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
