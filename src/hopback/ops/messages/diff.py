"""Compare two texts line by line in limited time."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CONTEXT_LINES = 3  # unchanged lines around a change, as is common in diffs
# Lines to compare with each other. The worst-case time is cubic in this number: it is 40 ms for 150
# lines and 600 ms for 400 lines. If there are more, they are shown as replaced.
_COMPARED_LINES = 150


def diff_lines(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield lines with a mark, which is `-` for removed, `+` for added and ` ` for unchanged. `…`
    replaces omitted lines.
    """
    shorter = min(len(before), len(after))
    head = next((n for n in range(shorter) if before[n] != after[n]), shorter)
    tail = next(
        (n for n in range(shorter - head) if before[-n - 1] != after[-n - 1]), shorter - head
    )
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    blocks = [("equal", before[:head], after[:head])]
    if max(len(old), len(new)) <= _COMPARED_LINES:
        found = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        blocks += [(kind, old[a:b], new[c:d]) for kind, a, b, c, d in found]
    else:
        blocks.append(("replace", old, new))
    blocks.append(("equal", before[len(before) - tail :], after[len(after) - tail :]))
    for kind, removed, added in blocks:
        if kind != "equal":
            yield from (("-", line) for line in removed)
            yield from (("+", line) for line in added)
        elif len(removed) <= 2 * _CONTEXT_LINES + 1:
            yield from ((" ", line) for line in removed)
        else:
            yield from ((" ", line) for line in removed[:_CONTEXT_LINES])
            yield "…", f"{len(removed) - 2 * _CONTEXT_LINES} unchanged lines"
            yield from ((" ", line) for line in removed[-_CONTEXT_LINES:])
