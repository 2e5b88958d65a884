"""Growing waits for `retry=`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, exponential, linear
from hopback.errors import InvalidDeclaration

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        (exponential("1s", attempts=5), "1s 2s 4s 8s"),
        (exponential("1s", attempts=8, limit="10s"), "1s 2s 4s 8s 10s 10s 10s"),
        (exponential(0.5, attempts=4, factor=1.5), "500ms 750ms 1s125ms"),
        (exponential(timedelta(minutes=1), attempts=2), "1m"),
        (exponential("1d", attempts=4, factor=1000), "1d 1000d 3650d"),
        (linear("10s", attempts=4), "10s 20s 30s"),
        (linear("10s", attempts=5, step="5m", limit="10m"), "10s 5m10s 10m 10m"),
        (linear("10s", attempts=3, step=0), "10s 10s"),
    ],
)
def test_waits_grow_up_to_the_limit(waits: list[str], expected: str) -> None:
    assert waits == expected.split()


def test_attempts_are_the_runs_of_the_handler() -> None:
    app = App("shop")
    app.queue("orders", retry=exponential("1s", attempts=8, limit="10s"))
    plan = app.topology.plan("orders")
    assert plan is not None
    assert plan.attempts == 8
    # The waits of 10 s share a queue.
    assert len({tier.name for tier in plan.tiers}) == 5


@pytest.mark.parametrize(
    ("call", "options", "error"),
    [
        (exponential, {"first": "0s"}, "exponential: first: expected more than 0, got '0s'"),
        (exponential, {"first": "1"}, r"exponential: first: expected a duration .*, got '1'"),
        (exponential, {"first": "2h", "limit": "1h"}, "at most '1h', got '2h'"),
        (exponential, {"first": "1s", "factor": 0.5}, "factor: expected a number from 1"),
        (linear, {"first": "1s", "attempts": 1}, "linear: attempts: expected a number of runs"),
        (linear, {"first": "1s", "step": "soon"}, "linear: step: expected a duration"),
    ],
)
def test_wrong_argument_is_refused_with_its_value(
    call: Callable[..., list[str]], options: dict[str, Any], error: str
) -> None:
    with pytest.raises(InvalidDeclaration, match=error):
        call(**{"attempts": 3, **options})
