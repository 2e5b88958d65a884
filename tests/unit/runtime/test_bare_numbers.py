"""Bare numbers that 0.1.0 took for milliseconds: said at the line that has them."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App
from hopback.runtime.context import compose

if TYPE_CHECKING:
    from collections.abc import Callable


def _queue(value: Any) -> None:
    App("shop").queue("orders", retry=["100ms", value])


def _handler(value: Any) -> None:
    @App("shop").handler("orders", retry=[value])
    async def handle(payload: dict[str, Any]) -> None:
        """Nothing."""


def _batch(value: Any) -> None:
    @App("shop").batch("orders", retry=["30s"], wait=value)
    async def handle(payloads: list[dict[str, Any]]) -> None:
        """Nothing."""


def _expiration(value: Any) -> None:
    compose("", "orders", {}, expiration=value)


_GIVEN = [_queue, _handler, _batch, _expiration]


@pytest.mark.parametrize("give", _GIVEN)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (30_000, 'write "30s" or "8h20m"'),
        (1000, 'write "1s" or "16m40s"'),
        (1500.5, 'write "1s501ms" or "25m500ms"'),
    ],
)
def test_a_large_bare_number_is_warned_of(
    give: Callable[[Any], None], value: float, said: str
) -> None:
    """What it means now, and both ways to write it; the warning names a line of the program."""
    with pytest.warns(UserWarning, match=f"{value} means") as found:
        give(value)
    (warning,) = found
    assert said in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("give", _GIVEN)
@pytest.mark.parametrize("value", [999, 0.5, "30000ms", "8h20m", timedelta(hours=8)])
def test_what_is_plain_is_not_warned_of(give: Callable[[Any], None], value: object) -> None:
    """Texts and timedeltas say their unit, and up to a thousand seconds are seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        give(value)
