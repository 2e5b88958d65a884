"""Tools for testing applications, with virtual time and an embedded broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.front_door import front_door

if TYPE_CHECKING:
    from hopback.broker.embedded import Fault as Fault
    from hopback.testing.captured import Happening as Happening, Tally as Tally
    from hopback.testing.kit import (
        AppTest as AppTest,
        assert_no_dead_letters as assert_no_dead_letters,
        assert_recovered_within as assert_recovered_within,
        in_virtual_time as in_virtual_time,
        rehearse as rehearse,
    )
    from hopback.testing.plugin import StartsApp as StartsApp
    from hopback.testing.threads import AppThread as AppThread, BrokerThread as BrokerThread

_HOMES = {
    "hopback.broker.embedded": "Fault",
    "hopback.testing.captured": "Happening Tally",
    "hopback.testing.kit": "AppTest assert_no_dead_letters assert_recovered_within in_virtual_time rehearse",
    "hopback.testing.plugin": "StartsApp",
    "hopback.testing.threads": "AppThread BrokerThread",
}

__getattr__, __dir__ = front_door(__name__, _HOMES)
