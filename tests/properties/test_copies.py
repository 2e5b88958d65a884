"""Under faults, identical messages end at least as often as they were sent."""

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


async def _run_steps(
    steps: list[tuple[str, float]], failures: int, takes: float
) -> tuple[int, int]:
    """Return the numbers of sent and of ended (done or parked) messages."""
    done: list[int] = []
    app = App("shop")

    @app.handler("orders", retry=["2s"], attempts=3, concurrency=2)
    async def handle(context: Context) -> Outcome | None:
        await asyncio.sleep(takes)
        if context.attempt <= failures:
            return Retry("planned failure") if failures < 9 else Park("hopeless")
        done.append(1)
        return None

    broker, sent = EmbeddedBroker(), 0
    left = list(steps)
    while left or not sent:
        async with AppTest(app, broker=broker) as test:
            while True:
                step, seconds = left.pop(0) if left else ("end", 0.0)
                if step == "send" or (step == "end" and not sent):
                    await test.publish("orders", 1, message_id="same")
                    sent += 1
                elif step == "cut":
                    broker.cut()
                elif step in _FAULTS:
                    broker.faults.inject(Fault(step))
                await test.advance(seconds)
                if step in ("die", "end"):
                    break
            if step == "die":  # a dead process reaches the broker no more
                broker.faults.inject(Fault.REFUSE_CONNECTION, 10_000)
                broker.cut()
        broker.faults.clear()
    async with AppTest(app, broker=broker) as test:
        await test.drain()
    return sent, len(done) + len(broker.snapshot().queue("orders.dlq").messages)


def _check_every_message_ends(steps: list[tuple[str, float]], failures: int, takes: float) -> None:
    sent, ended = run_virtual(_run_steps(steps, failures, takes))
    assert ended >= sent


_SETTINGS = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],
    derandomize=True,
    database=None,
)
_CASES = given(steps=_STEPS, failures=st.sampled_from([1, 2, 3]), takes=st.sampled_from([0.0, 3.0]))


@pytest.mark.slow
@_SETTINGS
@_CASES
def test_at_least_as_many_messages_end_as_were_sent(
    steps: list[tuple[str, float]], failures: int, takes: float
) -> None:
    """Cuts, lost confirms, lost acks and killed processes create copies. The last copy is never dropped."""
    _check_every_message_ends(steps, failures, takes)


def _token_by_content(reading: Reading) -> bytes | None:
    """Return a digest of message ID, attempt and body instead of the lineage."""
    text = f"{reading.delivery.properties.message_id} {reading.attempt} ".encode()
    body = reading.delivery.body
    return hashlib.sha256(text + body).digest() if reading.attempt > 1 else None


class _EndedWhenSeen(copies.EndedRuns):
    """Marks a run as ended at its first lookup."""

    def __contains__(self, token: bytes) -> bool:
        found = super().__contains__(token)
        self.add(token)
        return found

    def __bool__(self) -> bool:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["by content", "when seen"])
def test_loss_is_found_if_copies_are_dropped_by_content_or_too_early(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The property detects both mistakes."""
    if wrong == "by content":
        monkeypatch.setattr(settling, "token_of", _token_by_content)
    else:
        monkeypatch.setattr(settling, "EndedRuns", _EndedWhenSeen)
    with pytest.raises(AssertionError):
        _SETTINGS(_CASES(_check_every_message_ends))()
