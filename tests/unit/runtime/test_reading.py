"""The headers of a delivery are read once, however often they are asked on the way to settlement."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Outcome, Park, Retry, Snooze
from hopback.headers import History
from hopback.testing import AppTest, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextmanager
def _histories() -> Iterator[list[str]]:
    """The queues for which a history was read meanwhile, one entry for each time."""
    found: list[str] = []
    begin = History.__init__.__code__

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code is begin:
            found.append(frame.f_locals["queue"])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


def _app(outcome: Outcome, *, batch: bool) -> App:
    app = App("shop")

    async def single(_payload: dict[str, Any]) -> Outcome:
        return outcome

    async def several(payloads: list[dict[str, Any]]) -> list[Outcome]:
        return [outcome for _ in payloads]

    if batch:
        app.batch("orders", retry=["30s", "5m"], size=1)(several)
    else:
        app.handler("orders", retry=["30s", "5m"])(single)
    return app


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("outcome", "settled"), [(Retry("no"), 3), (Park("bad"), 1), (Snooze(10), 4)]
)
@in_virtual_time
async def test_delivery_is_parsed_once_until_settlement(
    outcome: Outcome, settled: int, batch: bool
) -> None:
    """Decision, headers, publish and record share the parsed value."""
    async with AppTest(_app(outcome, batch=batch)) as test:
        with _histories() as read:
            await test.publish("orders", {"id": 1}, message_id="m-1")
            # A snooze never ends by itself: four of 30 s fit here.
            await (test.advance(100) if isinstance(outcome, Snooze) else test.drain())
        events = ("delivery.retried", "delivery.parked", "delivery.snoozed")
        happened = sum(len(test.find_events(name)) for name in events)
    assert (happened, read) == (settled, ["orders"] * settled)
