"""How many messages a job holds at a time."""

from __future__ import annotations

import pytest

from hopback.ops.contract.requests import RedriveRequest
from hopback.ops.jobs.journal import JobSpec, SelectionSnapshot
from hopback.ops.jobs.read_ahead import choose_prefetch


@pytest.mark.parametrize(
    ("count", "is_classic", "is_paced", "held"),
    [
        pytest.param(1_000, True, False, 1_500, id="a short queue: three windows"),
        pytest.param(100_000, True, False, 5_000, id="a long one: a twentieth"),
        pytest.param(1_000_000, True, False, 10_000, id="a very long one: a second's work"),
        pytest.param(1_000_000, True, True, 1_500, id="at a rate: none waits for long"),
        pytest.param(1_000_000, False, False, 1_500, id="a quorum queue counts what is given back"),
    ],
)
def test_a_job_holds_more_of_a_long_classic_queue(
    count: int, is_classic: bool, is_paced: bool, held: int
) -> None:
    """Only where that is of use and harms nothing."""
    request = RedriveRequest(queue="q", reason="t")
    spec = JobSpec(request=request, broker="here", selection=SelectionSnapshot(count))
    assert choose_prefetch(spec, is_classic=is_classic, is_paced=is_paced) == held
