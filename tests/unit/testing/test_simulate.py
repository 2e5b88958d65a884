"""One message's life, played on the embedded broker."""

from __future__ import annotations

import pytest

from hopback import App, Snooze
from hopback.designs import DESIGNS
from hopback.testing.simulate import Script, Timeline, TimelineStep, simulate
from hopback.topology.model import Binding, Queue, Topology
from hopback.topology.routing import CannotSimulate
from hopback.version import BrokerVersion

_VERSIONS = ("3.10", "4.0", "4.3")
_DOCUMENTS = "freeflow.documents.queue"
_MAIN = {
    "file-pipeline": "q.validator",
    "event-bus": "wms.queue.wms-orders",
    "freeflow": _DOCUMENTS,
    "raffle": "raffle_queue",
    "ratatoskr": "my-service.events",
    "recommended": "orders",
}
_WAITS_MS = {
    "file-pipeline": [15_000] * 2,
    "event-bus": [5_000] * 10,
    "freeflow": [30_000, 300_000, 1_800_000],
    "raffle": [10_000] * 3,
    "ratatoskr": [5_000] * 3,
    "recommended": [30_000, 300_000, 1_800_000],
}


def _play(
    system: str,
    fail: str,
    *,
    hardened: bool = False,
    version: str = "4.0",
    key: str | None = None,
    **parameters: str,
) -> Timeline:
    return simulate(
        DESIGNS[system].build(parameters, hardened=hardened),
        queue=_MAIN[system],
        script=Script.parse(fail),
        routing_key=key,
        version=BrokerVersion.parse(version),
    )


def _moments(timeline: Timeline, step: TimelineStep) -> list[int]:
    return [entry.at_ms for entry in timeline.entries if entry.step is step]


def _sums(waits: list[int]) -> list[int]:
    return [sum(waits[: place + 1]) for place in range(len(waits))]


@pytest.mark.parametrize("system", _MAIN)
@pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
@pytest.mark.parametrize("version", _VERSIONS)
def test_failing_message_waits_as_planned_and_is_parked(
    system: str, hardened: bool, version: str
) -> None:
    """Every design, both forms, every version."""
    timeline = _play(system, "always", hardened=hardened, version=version)
    plan = DESIGNS[system].build(hardened=hardened).plan(_MAIN[system])
    assert plan is not None
    assert _moments(timeline, TimelineStep.RUN) == [0, *_sums(_WAITS_MS[system])]
    assert timeline.runs == plan.attempts
    assert timeline.last_event.step is TimelineStep.PARKED
    assert timeline.last_event.queue == plan.parking.queue
    assert _moments(timeline, TimelineStep.LOST) == []


@pytest.mark.parametrize("system", _MAIN)
@pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
def test_message_that_succeeds_after_two_failures_is_done(system: str, hardened: bool) -> None:
    timeline = _play(system, "2", hardened=hardened)
    assert timeline.runs == 3
    assert timeline.last_event.step is TimelineStep.DONE
    assert _moments(timeline, TimelineStep.PARKED) == []


def test_freeflow_retries_copy_messages_to_audit_queue() -> None:
    """The audit queue gets its first copy and three extra ones, which carry the count of the other
    queue.
    """
    timeline = _play("freeflow", "always", key="document.created", audit="#")
    audit = [entry for entry in timeline.entries if entry.queue == "freeflow.audit.queue"]
    assert [(entry.step, entry.at_ms) for entry in audit] == [
        (TimelineStep.COPY, 0),
        (TimelineStep.EXTRA, 30_000),
        (TimelineStep.EXTRA, 330_000),
        (TimelineStep.EXTRA, 2_130_000),
    ]
    assert [entry.headers.get("x-retry-count") for entry in audit] == [None, "1", "2", "3"]
    assert timeline.extra_copies == {"freeflow.audit.queue": 3}


@pytest.mark.parametrize("system", _MAIN)
def test_hardened_retries_make_no_extra_copies(system: str) -> None:
    assert _play(system, "always", hardened=True).extra_copies == {}


def test_script_outcome_p_parks_at_once() -> None:
    timeline = _play("file-pipeline", "p")
    assert timeline.runs == 1
    assert timeline.last_event.headers["x-parked-reason"] == "simulated hopeless failure"


@pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
def test_simulated_snooze_does_not_count_as_attempt(hardened: bool) -> None:
    timeline = _play("event-bus", "ssx", hardened=hardened)
    runs = [entry.text for entry in timeline.entries if entry.step is TimelineStep.RUN]
    assert [text.split(" of ")[0] for text in runs] == [
        "attempt 1",
        "attempt 1",
        "attempt 1",
        "attempt 2",
    ]


def test_x_death_counts_rejections_in_reject_loop() -> None:
    timeline = _play("ratatoskr", "2")
    last = [entry for entry in timeline.entries if entry.step is TimelineStep.RUN][-1]
    assert "rejected my-service.events ×2" in last.headers["x-death"]


def test_simulating_queue_without_plan_lists_planned_queues() -> None:
    with pytest.raises(CannotSimulate, match="raffle_queue"):
        simulate(DESIGNS["raffle"].build(), queue="raffle_dlq", script=Script())


def test_dropped_message_is_shown_as_lost() -> None:
    raffle = DESIGNS["raffle"].build()
    broken = Topology(
        "broken",
        exchanges=raffle.exchanges,
        queues=tuple(queue for queue in raffle.queues if queue.name != "raffle_dlq"),
        bindings=tuple(each for each in raffle.bindings if each.destination != "raffle_dlq"),
        plans=raffle.plans,
    )
    timeline = simulate(broken, queue="raffle_queue", script=Script.parse("p"))
    assert timeline.last_event.step is TimelineStep.LOST
    assert timeline.last_event.text == "unroutable dead letter"


def test_unconsumed_queue_is_shown_as_extra_copy() -> None:
    raffle = DESIGNS["raffle"].build()
    watched = Topology(
        "watched",
        exchanges=raffle.exchanges,
        queues=(*raffle.queues, Queue("bystander")),
        bindings=(
            *raffle.bindings,
            Binding("raffle_exchange", "bystander", "raffle_queue"),
        ),
        plans=raffle.plans,
    )
    timeline = simulate(watched, queue="raffle_queue", script=Script.parse("1"))
    assert timeline.extra_copies == {"bystander": 1}
    assert timeline.last_event.step is TimelineStep.DONE


def _later() -> Topology:
    app = App("shop")
    app.delays("1h")
    app.handler("orders", retry=["30s"])(lambda context: None)
    return app.topology


def test_long_snooze_uses_delay_queues_to_the_second() -> None:
    told = simulate(_later(), queue="orders", script=Script((Snooze("10m"),)))
    assert told.runs == 2
    returned = next(one for one in told.entries if one.step is TimelineStep.RETURNED)
    assert returned.at_ms == 600_000
    assert told.extra_copies == {}
