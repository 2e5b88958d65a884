"""The quick path of a re-drive creates the same messages as the careful path."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.designs import DESIGNS
from hopback.errors import UnsafeOperation
from hopback.message import Properties, Received
from hopback.policy.redrive import RedriveOccasion, Redriver, redrive_message
from hopback.wire.properties import encode_properties
from tests.properties.field_values import properties, tables

if TYPE_CHECKING:
    from hopback.message import Message
    from hopback.topology.plan import Plan

_PLANS = [
    plan
    for design in DESIGNS.values()
    for hardened in (False, True)
    for plan in design.build(hardened=hardened).plans
]
_NAMES = st.sampled_from(
    [
        "x-death", "x-first-death-queue", "CC", "BCC", "x-delivery-count", "x-retry-count", "x-retries",
        "hopback-queue", "hopback-attempts", "hopback-failure", "hopback-redrives", "x-original-exchange",
        "hopback-future", "x-tenant",
    ]
)  # fmt: skip


def _both(delivery: Received, plan: Plan, occasion: RedriveOccasion) -> tuple[Any, Any]:
    quick = Redriver(plan, plan.redrive, occasion)
    return _result_of(lambda: quick.message(delivery)), _result_of(
        lambda: redrive_message(delivery, plan, occasion)
    )


def _result_of(make: Any) -> Message | str:
    try:
        message: Message = make()
    except UnsafeOperation as refused:
        return str(refused)
    return message


@given(
    st.sampled_from(_PLANS),
    properties,
    st.dictionaries(_NAMES, st.one_of(st.integers(0, 9), st.text(max_size=5), tables), max_size=3),
    st.booleans(),
)
def test_quick_and_careful_path_agree(
    plan: Plan, made: Properties, more: dict[str, Any], stamped: bool
) -> None:
    """For every plan, all properties and all headers with a meaning."""

    both = replace(made, headers={**made.headers, **more})
    delivery = Received(plan.parking.queue, "ex", "key", b"body", both)
    occasion = RedriveOccasion(1_700_000_000.0, "j-1", "u", "Ann", "op", stamped)
    quick, careful = _both(delivery, plan, occasion)
    assert quick == careful
    if not isinstance(quick, str):
        assert list(quick.properties.headers) == list(careful.properties.headers)


@pytest.mark.parametrize(
    "odd",
    [
        Properties(),
        Properties(user_id="alice"),
        Properties(opaque_headers=b"\x01xV"),
        Properties(headers={"a": 1}, further_headers=((b"CC", ["vault"]), (b"a", 2))),
        Properties(headers={"x-first-death-reason": "rejected"}),
        Properties(headers={"x-plain": 1}),
        Properties(headers={"big": "x" * 100_000}),
        Properties(headers={"big": "x" * 131_000}),
    ],
)
def test_quick_and_careful_path_agree_on_special_properties(odd: Properties) -> None:
    """Each condition for the careful path, and none of them."""
    plan = next(plan for plan in _PLANS if plan.redrive.reset)
    delivery = Received(plan.parking.queue, "ex", "key", b"body", odd)
    quick, careful = _both(delivery, plan, RedriveOccasion(1.0, "j-1"))
    assert quick == careful


def test_every_route_has_its_own_origin_and_identical_bytes() -> None:
    """More routes than the cache holds, each twice."""
    plan = next(plan for plan in _PLANS if plan.redrive.reset)
    occasion = RedriveOccasion(1.0, "j-1")
    quick = Redriver(plan, plan.redrive, occasion)
    for number in (*range(300), *range(300)):
        own = Properties(headers={"n": number})
        delivery = Received(plan.parking.queue, "ex", f"key.{number}", b"body", own)
        made = quick.message(delivery)
        careful = redrive_message(delivery, plan, occasion)
        assert made == careful
        assert encode_properties(made.properties) == encode_properties(careful.properties)
