"""What a simulated handler does, run by run.

A script is written as `3` (the first three runs fail), `always`, or one character per run:

=======  =============================================================
letter   the run
=======  =============================================================
`.`      succeeds
`x` `r`  fails and may be retried
`p`      fails for good: park
`s`      is not due yet: snooze, for a second unless another time is said
=======  =============================================================

After the last letter every run succeeds. Scripts are values: no clock, no chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.policy.outcome import Done, Park, Retry, Snooze

if TYPE_CHECKING:
    from hopback.policy.outcome import Outcome
    from hopback.topology.durations import Duration

__all__ = ["Script"]

_MOST_RUNS = 10_000  # a plan of more attempts is a slip; the simulation must end
_DONE = Done()
_OUTCOMES: dict[str, Outcome] = {
    ".": _DONE,
    "x": Retry("simulated failure"),
    "r": Retry("simulated failure"),
    "p": Park("simulated hopeless failure"),
    "s": Snooze(1.0),
}


@dataclass(frozen=True, slots=True)
class Script:
    """The outcomes of the first runs in order, then `rest` for every further run."""

    outcomes: tuple[Outcome, ...] = ()
    rest: Outcome = _DONE

    @classmethod
    def parse(cls, text: str, *, snooze: Duration = 1.0) -> Script:
        """Read `3`, `always` or a pattern like `xx.p`; ValueError says what was expected.

        `snooze` is how long an `s` snoozes.
        """
        words = text.strip().lower()
        if words == "always":
            return cls(rest=_OUTCOMES["x"])
        if words.isascii() and words.isdigit() and int(words) <= _MOST_RUNS:
            return cls((_OUTCOMES["x"],) * int(words))
        if not words or len(words) > _MOST_RUNS or not set(words) <= set(_OUTCOMES):
            raise ValueError(
                f"expected a number up to {_MOST_RUNS}, always, or one character per run"
                f" (. ok, x or r fail, p park, s snooze), got {text!r}"
            )
        outcomes = {**_OUTCOMES, "s": Snooze(snooze)}
        return cls(tuple(outcomes[letter] for letter in words))

    def outcome(self, run: int) -> Outcome:
        """What the handler says in its run number `run`, beginning with 1."""
        return self.outcomes[run - 1] if run <= len(self.outcomes) else self.rest
