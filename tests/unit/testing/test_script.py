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
def test_a_script_says_what_each_run_does(text: str, expected: list[type[Outcome]]) -> None:
    """Numbers fail that often, letters stand for one run each, and then all is well."""
    assert _kinds(text, len(expected)) == expected


@pytest.mark.parametrize(
    "text", ["", " ", "-1", "1.5", "sometimes", "xx?", "10001", "²", "x" * 10_001]
)
def test_what_is_no_script_is_refused(text: str) -> None:
    """The error says what a script looks like."""
    with pytest.raises(ValueError, match="expected a number up to 10000, always, or one character"):
        Script.parse(text)
