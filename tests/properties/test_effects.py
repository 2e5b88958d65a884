"""Effects settle exactly once and last, after a publish is confirmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from hopback.headers import FRAME_BYTES, Failure, frame_size
from hopback.policy import Occasion, Outcome, decide, effects
from hopback.policy import decision as decided
from hopback.policy.decision import Hold, Publish, Settle, Settlement
from hopback.topology.plan import Leave, Plan
from tests.properties.hostile import VERSIONS, deliveries, many_examples, outcomes, plans

if TYPE_CHECKING:
    from hopback.version import BrokerVersion

_DEATHS = ("x-death", "x-first-death-", "x-last-death-")
_failures = st.none() | st.builds(
    Failure, st.text(max_size=20), st.text(max_size=50), stack=st.text(max_size=200)
)
_occasions = st.builds(
    Occasion, st.floats(), st.text(max_size=10), _failures, st.none() | st.integers(100, 599)
)


@given(st.data(), plans, outcomes, st.sampled_from(VERSIONS), _occasions)
@many_examples
def test_settlement_is_the_last_effect_and_the_only_one(
    data: st.DataObject, plan: Plan, outcome: Outcome, version: BrokerVersion, occasion: Occasion
) -> None:
    delivery = data.draw(deliveries(plan))
    steps = effects(decide(delivery, outcome, plan, version=version), delivery, plan, occasion)
    assert [isinstance(step, Settle) for step in steps] == [False] * (len(steps) - 1) + [True]


@given(st.data(), plans, outcomes, st.sampled_from(VERSIONS), _occasions)
@many_examples
def test_publish_precedes_ack_unless_the_work_is_done(
    data: st.DataObject, plan: Plan, outcome: Outcome, version: BrokerVersion, occasion: Occasion
) -> None:
    """A publish is followed by an ack."""
    delivery = data.draw(deliveries(plan))
    decision = decide(delivery, outcome, plan, version=version)
    steps = effects(decision, delivery, plan, occasion)
    match decision:
        case decided.Ack():
            assert steps == (Settle(Settlement.ACK),)
        case decided.Requeue(delay=delay):
            assert steps == (Hold(delay), Settle(Settlement.RELEASE))
        case decided.Retry(by=Leave.REJECT) | decided.Park(by=Leave.REJECT):
            assert steps == (Settle(Settlement.DEAD_LETTER),)
        case _:
            assert isinstance(steps[0], Publish)
            assert steps[1:] == (Settle(Settlement.ACK),)
            assert steps[0].message.body == delivery.body
            assert frame_size(steps[0].message.properties) <= FRAME_BYTES


@given(st.data(), plans, outcomes, st.sampled_from(VERSIONS), _occasions)
@many_examples
def test_published_retry_has_no_harmful_headers_or_properties(
    data: st.DataObject, plan: Plan, outcome: Outcome, version: BrokerVersion, occasion: Occasion
) -> None:
    """No deaths, expiration, additional routes or user ID."""
    delivery = data.draw(deliveries(plan))
    decision = decide(delivery, outcome, plan, version=version)
    for step in effects(decision, delivery, plan, occasion):
        if isinstance(step, Publish):
            properties = step.message.properties
            assert (properties.expiration, properties.user_id) == (None, None)
            assert properties.delivery_mode == 2
            assert not properties.headers.keys() & {
                "CC", "BCC", "x-delivery-count", "x-acquired-count",
            }  # fmt: skip
            if isinstance(decision, decided.Retry):
                assert not [name for name in properties.headers if name.startswith(_DEATHS)]
