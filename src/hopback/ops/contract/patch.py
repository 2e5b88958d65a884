"""A JSON patch (RFC 6902) and the preview of its effect."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

MOST_STEPS = 50  # steps of a change. Each runs for every message and is shown in the review.


class PatchOperation(Struct, frozen=True, forbid_unknown_fields=True):
    """One step: `add`, `replace` or `remove` the value at `path`, or `test` that it equals `value`.

    A path is a JSON pointer like `/order/lines/0/sku`. In a name, `~1` is a slash and `~0` a tilde. `-` at
    the end is the position after the last item of a list. All operations except `remove` need a `value`.
    """

    op: Literal["add", "replace", "remove", "test"]
    path: Annotated[str, Meta(max_length=1024, pattern=r"^(/.*)?$")]
    value: Any = UNSET

    def __post_init__(self) -> None:
        if self.value is UNSET and self.op != "remove":
            raise ValueError(
                f"Expected `value` with `{self.op}` (null is written as null), got none"
            )


Patch = Annotated[tuple[PatchOperation, ...], Meta(max_length=MOST_STEPS)]
"""The steps of a change in order."""


class ChangeSample(Struct, frozen=True, rename="camel"):
    """The effect of a change on one message: the changed lines, or the reason why it cannot be made.

    The first character of a line is its mark: `-` removed, `+` added, ` ` unchanged, `…` omitted.
    """

    id: str
    diff: tuple[str, ...] = ()
    problem: str = ""
