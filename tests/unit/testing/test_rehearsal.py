"""Rehearsals in the test kit: they pass if the plan holds, and name the expected value if it does
not.
"""

from __future__ import annotations

import pytest

from hopback import App
from hopback.rehearse import EngineKind
from hopback.testing import assert_no_dead_letters, assert_recovered_within, rehearse
from tests.unit.rehearse.worlds import scenario


def _app() -> App:
    app = App("shop")
    app.queue("orders", retry=("30s", "5m"))
    return app


def test_rehearsal_of_short_outage_passes_in_both_engines() -> None:
    for engine in EngineKind:
        forecast = rehearse(
            _app(), scenario(rate=1.0, outage=(60.0, 120.0), duration_s=1200.0), engine=engine
        )
        assert_no_dead_letters(forecast)
        assert_recovered_within(forecast, "6m")


def test_rehearsal_of_long_outage_fails_with_numbers() -> None:
    """The message has the counts, queues and times, and the time to recovery."""
    forecast = rehearse(_app(), scenario(outage=(60.0, 3600.0)))
    with pytest.raises(AssertionError, match=r"orders: 16,\d+, the first after 6m30s"):
        assert_no_dead_letters(forecast)
    with pytest.raises(AssertionError, match="expected recovery within 1m, got it after"):
        assert_recovered_within(forecast, "1m")


def test_rehearsal_without_recovery_fails() -> None:
    forecast = rehearse(_app(), scenario(outage=(60.0, 3600.0), duration_s=3700.0))
    with pytest.raises(AssertionError, match="got none by the end"):
        assert_recovered_within(forecast, "1m")
