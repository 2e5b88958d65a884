from __future__ import annotations

from hopback.ops.browse.trend import last_day, thin_samples
from hopback.ops.contract.surveys import QueueTrend, TrendSample
from hopback.ops.contract.values import Moment

_HOUR_S = 3600
_DAY_S = 86_400


def _samples(start: int, end: int, step: int) -> tuple[TrendSample, ...]:
    return tuple(TrendSample(Moment(at), at) for at in range(start, end, step))


def test_thin_samples_keeps_a_day_and_one_sample_of_each_older_hour() -> None:
    thinned = thin_samples(_samples(0, 3 * _DAY_S, 300))
    assert thinned[-288:] == _samples(2 * _DAY_S, 3 * _DAY_S, 300)
    assert thinned[:-288] == _samples(0, 2 * _DAY_S, _HOUR_S)


def test_thin_samples_forgets_samples_older_than_a_month() -> None:
    hours = _samples(0, 60 * _DAY_S, _HOUR_S)
    assert len(thin_samples(hours)) == 720 + 288


def test_last_day_adds_up_growth_only() -> None:
    depths = (5, 9, 2, 4)
    samples = tuple(TrendSample(Moment(at), depth) for at, depth in enumerate(depths))
    assert last_day(QueueTrend("q", samples), now=10.0).arrived == 4 + 2


def test_last_day_draws_few_samples_with_the_newest() -> None:
    day = last_day(QueueTrend("q", _samples(0, 2 * _DAY_S, 300)), now=2.0 * _DAY_S)
    assert len(day.samples) <= 48
    assert day.samples[-1].at == Moment(2 * _DAY_S - 300)
    assert all(one.at >= _DAY_S for one in day.samples)
