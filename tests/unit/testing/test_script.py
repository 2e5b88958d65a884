"""Scripts of simulated handlers."""

from __future__ import annotations

import pytest

from hopback.policy.outcome import Done, Outcome, Park, Retry, Snooze
from hopback.testing.simulate import Script


def _kinds(text: str, runs: int) -> list[type[Outcome]]:
    script = Script.parse(text)
    return [type(script.outcome(run)) for run in range(1, runs + 1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [Done, Done]),
        ("2", [Retry, Retry, Done, Done]),
        ("always", [Retry] * 5),
        ("ALWAYS", [Retry]),
        ("xr.ps", [Retry, Retry, Done, Park, Snooze, Done]),
        (".", [Done, Done]),
    ],
)
def test_script_text_gives_outcome_of_each_run(text: str, expected: list[type[Outcome]]) -> None:
    """A number is the number of failures, a character stands for one run."""
    assert _kinds(text, len(expected)) == expected


@pytest.mark.parametrize(
    "text", ["", " ", "-1", "1.5", "sometimes", "xx?", "10001", "²", "x" * 10_001]
)
def test_invalid_script_is_refused_with_allowed_forms(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number up to 10000, always, or one character"):
        Script.parse(text)
