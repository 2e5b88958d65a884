"""Whatever breaks: of messages that are equal in every byte as many end as were sent."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hopback import App, Context, Outcome, Park, Retry
from hopback.broker import EmbeddedBroker
from hopback.broker.embedded import run_virtual
from hopback.policy import copies
from hopback.runtime import settling
from hopback.testing import AppTest, Fault

if TYPE_CHECKING:
    from hopback.policy.reading import Reading

_FAULTS = [
    Fault.LOSE_CONFIRM,
    Fault.CUT_AFTER_PUBLISH,
    Fault.CUT_BEFORE_SETTLE,
    Fault.CUT_AFTER_SETTLE,
]
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "cut", "die", *_FAULTS]),
        st.sampled_from([0.0, 0.5, 1.5, 4.0]),
    ),
    min_size=1,
    max_size=10,
)


async def _play(steps: list[tuple[str, float]], failures: int, takes: float) -> tuple[int, int]:
    """How many equal messages were sent, and how many ends (done or parked) there were."""
    done: list[int] = []
    app = App("shop")

    @app.handler("orders", retry=["2s"], attempts=3, concurrency=2)
    async def handle(context: Context) -> Outcome | None:
        await asyncio.sleep(takes)
        if context.attempt <= failures:
            return Retry("as told") if failures < 9 else Park("hopeless")
        done.append(1)
        return None

    broker, sent = EmbeddedBroker(), 0
    left = list(steps)
    while left or not sent:
        async with AppTest(app, broker=broker) as test:
            while True:
                what, seconds = left.pop(0) if left else ("end", 0.0)
                if what == "send" or (what == "end" and not sent):
                    await test.publish("orders", 1, message_id="same")
                    sent += 1
                elif what == "cut":
                    broker.cut()
                elif what in _FAULTS:
                    broker.faults.inject(Fault(what))
                await test.advance(seconds)
                if what in ("die", "end"):
                    break
            if what == "die":  # nothing it does from now on reaches the broker
                broker.faults.inject(Fault.REFUSE_CONNECTION, 10_000)
                broker.cut()
        broker.faults.clear()
    async with AppTest(app, broker=broker) as test:
        await test.drain()
    return sent, len(done) + len(broker.snapshot().queue("orders.dlq").messages)


def _holds(steps: list[tuple[str, float]], failures: int, takes: float) -> None:
    sent, ended = run_virtual(_play(steps, failures, takes))
    assert ended >= sent


_SETTINGS = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],
    derandomize=True,
    database=None,
)
_LIVES = given(steps=_STEPS, failures=st.sampled_from([1, 2, 3]), takes=st.sampled_from([0.0, 3.0]))


@pytest.mark.slow
@_SETTINGS
@_LIVES
def test_as_many_messages_end_as_were_sent(
    steps: list[tuple[str, float]], failures: int, takes: float
) -> None:
    """Cuts, lost confirms, lost acks and dead processes make copies; no last copy is ever dropped."""
    _holds(steps, failures, takes)


def _by_content(reading: Reading) -> bytes | None:
    """What does not look at the lineage: id, attempt and body."""
    text = f"{reading.delivery.properties.message_id} {reading.attempt} ".encode()
    body = reading.delivery.body
    return hashlib.sha256(text + body).digest() if reading.attempt > 1 else None


class _Seen(copies.EndedRuns):
    """Takes a run for ended as soon as it was seen."""

    def __contains__(self, token: bytes) -> bool:
        found = super().__contains__(token)
        self.add(token)
        return found

    def __bool__(self) -> bool:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["by content", "when seen"])
def test_dropping_by_content_or_too_early_is_found_out(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both mistakes lose messages, and this very property says so."""
    if wrong == "by content":
        monkeypatch.setattr(settling, "token_of", _by_content)
    else:
        monkeypatch.setattr(settling, "EndedRuns", _Seen)
    with pytest.raises(AssertionError):
        _SETTINGS(_LIVES(_holds))()
