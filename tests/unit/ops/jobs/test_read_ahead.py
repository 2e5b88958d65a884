"""How many messages a job holds at a time."""

from __future__ import annotations

import pytest

from hopback.ops.contract.requests import RedriveRequest
from hopback.ops.jobs.job_spec import JobSpec
from hopback.ops.jobs.read_ahead import choose_prefetch


@pytest.mark.parametrize(
    ("count", "is_classic", "is_paced", "held"),
    [
        pytest.param(1_000, True, False, 1_500, id="a short queue: three windows"),
        pytest.param(100_000, True, False, 5_000, id="a long one: a twentieth"),
        pytest.param(1_000_000, True, False, 10_000, id="a very long one: a second's work"),
        pytest.param(1_000_000, True, True, 1_500, id="at a rate: none waits for long"),
        pytest.param(1_000_000, False, False, 4_000, id="a quorum queue: eight windows"),
        pytest.param(1_000_000, False, True, 1_500, id="a quorum queue at a rate"),
    ],
)
def test_prefetch_of_a_job_depends_on_queue_type_length_and_rate(
    count: int, is_classic: bool, is_paced: bool, held: int
) -> None:
    request = RedriveRequest(queue="q", reason="t")
    spec = JobSpec(request=request, broker="here", span=count)
    assert choose_prefetch(spec, is_classic=is_classic, is_paced=is_paced) == held
