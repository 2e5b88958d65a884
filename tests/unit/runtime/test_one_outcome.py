"""Silence is never success: whatever handlers do, each delivery has exactly one visible outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hopback import App, Done, Park, Retry, Rule, Snooze
from hopback.broker import EmbeddedBroker
from hopback.broker.embedded import EventKind
from hopback.observe.events import EVENTS
from hopback.policy.outcome import Verdict
from hopback.testing import AppTest, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded import Event


class _Unprintable(Exception):
    """An exception whose text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class _Odd:
    """A value that resists being looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


def _raise(error: BaseException) -> None:
    raise error


_SAID: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "done": Done,
    "retry": lambda: Retry("later"),
    "retry after": lambda: Retry("later", after=3),
    "park": lambda: Park("hopeless"),
    "snooze": lambda: Snooze(2),
    "text": lambda: "ok",
    "odd": _Odd,
    "error": lambda: _raise(ValueError("no")),
    "by rule": lambda: _raise(KeyError("no")),
    "unprintable": lambda: _raise(_Unprintable()),
    "exit": lambda: _raise(SystemExit(3)),
    "cancelled": lambda: _raise(asyncio.CancelledError()),
    "group": lambda: _raise(ExceptionGroup("many", [ValueError("a"), OSError("b")])),
}
_OUTCOMES = (
    "delivery.done",
    "delivery.retried",
    "delivery.parked",
    "delivery.snoozed",
    "delivery.abandoned",
    "delivery.copy",
)


@given(
    scripts=st.lists(
        st.lists(
            st.tuples(st.sampled_from(sorted(_SAID)), st.sampled_from([0, 0, 0.5, 20])),
            max_size=4,
        ),
        min_size=1,
        max_size=8,
    ),
    concurrency=st.integers(1, 3),
    in_order=st.booleans(),
    in_threads=st.booleans(),
    cuts=st.lists(st.floats(0, 20), max_size=2),
)
@settings(max_examples=25, deadline=None)
def test_each_delivery_has_exactly_one_outcome_event(
    scripts: list[list[tuple[str, float]]],
    concurrency: int,
    in_order: bool,
    in_threads: bool,
    cuts: list[float],
) -> None:
    """Every message is done or in the dead-letter queue at the end."""
    runs: Counter[int] = Counter()

    def said(number: int) -> tuple[str, float]:
        run, runs[number] = runs[number], runs[number] + 1
        script = scripts[number]
        return script[run] if run < len(script) else ("nothing", 0)

    async def behave(payload: dict[str, int]) -> Any:
        what, seconds = said(payload["id"])
        await asyncio.sleep(seconds)
        return _SAID[what]()

    def behave_in_thread(payload: dict[str, int]) -> Any:
        return _SAID[said(payload["id"])[0]]()

    def key(delivery: Any) -> str:
        return str(len(delivery.body) % 2)

    app = App("shop")
    app.handler(
        "orders",
        retry=["1s", "5s"],
        attempts=4,
        concurrency=concurrency,
        deadline=10,
        key=key if in_order else None,
        rules=[Rule(KeyError, Verdict.PARK)],
    )(behave_in_thread if in_threads else behave)
    _play(app, len(scripts), cuts)


@in_virtual_time
async def _play(app: App, messages: int, cuts: list[float]) -> None:
    broker = EmbeddedBroker()
    async with AppTest(app, broker=broker) as test:
        delivered: Counter[str] = Counter()

        def listen(event: Event) -> None:
            test._stirred.set()
            if event.kind is EventKind.DELIVERED and event.queue == "orders":
                delivered[event.body.decode()] += 1

        broker.node.listen(listen)
        for number in range(messages):
            await test.publish("orders", {"id": number}, message_id=str(number))
        for pause in cuts:
            await test.advance(pause)
            broker.cut()
        tally = await test.drain()
        resting = len(test.dead_letters("orders"))
    for one in test.events:
        assert set(one.fields) == set(EVENTS[one.name].fields), one.name
    said = Counter(one.fields["message_id"] for one in test.events if one.name in _OUTCOMES)
    # A lost connection returns prefetched messages that never started. They have no event.
    if not cuts:
        assert sum(said.values()) == sum(delivered.values())
        assert tally.abandoned == 0
        assert tally.done + tally.parked == messages
        assert tally.parked == resting
    assert sum(said.values()) <= sum(delivered.values())
    assert tally.done + resting >= messages
    assert test.report is not None
    assert test.report.left == ()
    assert asyncio.all_tasks() == {asyncio.current_task()}
