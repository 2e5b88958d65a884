"""Rehearsals in the test kit: they pass where the plan holds, and say what they expected where not."""

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


def test_a_short_outage_is_survived() -> None:
    """Nothing is parked, and all is well when the last wait is over; both engines say so."""
    for engine in EngineKind:
        forecast = rehearse(
            _app(), scenario(rate=1.0, outage=(60.0, 120.0), duration_s=1200.0), engine=engine
        )
        assert_no_dead_letters(forecast)
        assert_recovered_within(forecast, "6m")


def test_a_long_one_fails_the_test_with_its_numbers() -> None:
    """How many, where and when; and how long recovery took."""
    forecast = rehearse(_app(), scenario(outage=(60.0, 3600.0)))
    with pytest.raises(AssertionError, match=r"orders: 16,\d+, the first after 6m30s"):
        assert_no_dead_letters(forecast)
    with pytest.raises(AssertionError, match="expected recovery within 1m, got it after"):
        assert_recovered_within(forecast, "1m")


def test_no_recovery_is_said() -> None:
    """The end comes before all is well."""
    forecast = rehearse(_app(), scenario(outage=(60.0, 3600.0), duration_s=3700.0))
    with pytest.raises(AssertionError, match="got none by the end"):
        assert_recovered_within(forecast, "1m")
