"""The options of a job, and the command options derived from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import pytest

from hopback.errors import BadRequest
from hopback.ops.cli.dlq_actions import discard, redrive
from hopback.ops.contract.codec import convert
from hopback.ops.contract.options import options_of, with_options
from hopback.ops.contract.requests import DiscardRequest, Pace, RedriveRequest, Selection

if TYPE_CHECKING:
    from hopback.ops.contract.options import JobOption

_NUMBERS = [one for one in options_of(RedriveRequest) if one.kind in (int, float)]


@pytest.mark.parametrize("one", _NUMBERS, ids=lambda one: one.name)
def test_command_and_api_have_the_bounds_and_the_default_of_the_option(one: JobOption) -> None:
    (param,) = (each for each in redrive.params if each.name == one.name)
    assert isinstance(param.type, click.IntRange | click.FloatRange)
    assert (param.type.min, param.type.max, param.default) == (one.least, one.most, one.default)
    owner: Any = {"pace": Pace, "selection": Selection, "": RedriveRequest}[one.owner]
    said: dict[str, Any] = (
        {"kind": "re-drive", "queue": "q", "reason": "r"} if owner is RedriveRequest else {}
    )
    if one.most is not None:
        convert(owner, said | {one.json: one.most})
        with pytest.raises(BadRequest, match=one.json):
            convert(owner, said | {one.json: one.most + 1})


def test_discard_has_no_options_of_the_ramp() -> None:
    names = {param.name for param in discard.params}
    assert names & {"in_flight", "ramp", "watch_s", "max_returned", "change", "target"} == set()
    assert {"filter", "limit", "rate", "reason", "export"} <= names


@pytest.mark.parametrize(("given", "exported"), [([], True), (["--no-export"], False)])
def test_discard_exports_unless_it_is_switched_off(given: list[str], exported: bool) -> None:
    with discard.make_context("discard", ["q.dlq", *given]) as context:
        assert context.params["export"] is exported


def test_options_by_name_become_the_parts_of_a_request() -> None:
    given = {"filter": "age>1h", "rate": 5.0, "reason": "repaired"}
    assert with_options(RedriveRequest, given, queue="q") == RedriveRequest(
        queue="q", reason="repaired", selection=Selection(filter="age>1h"), pace=Pace(5.0)
    )
    assert with_options(DiscardRequest, {"reason": "r", "export": False}, queue="q") == (
        DiscardRequest(queue="q", reason="r", export=False)
    )
