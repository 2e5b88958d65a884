"""A change of many JSON bodies as data: the operations of a JSON patch (RFC 6902). Pure, bounded, no code.

What cannot be changed as asked is left as it is, with the reason. Numbers keep their values, not their
spelling: `1.10` may become `1.1`.
"""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from hopback.ops.messages.diff import diff_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

_LARGEST = 1024 * 1024  # bytes of a body: reading and writing it takes some tens of milliseconds
_DEEPEST = 50  # names in a path; deeper ones are mistakes
MOST_STEPS = 50  # of a change: each is made to every message, and shown to the people who review it
_DIFF_LINES = 100  # of a preview: a screen or two
_DIFF_BYTES = 64 * 1024  # of a body whose change is shown line by line


class PatchFailed(ValueError):
    """Why a body cannot be changed as asked."""


class PatchOperation(Struct, frozen=True, forbid_unknown_fields=True):
    """One step: `add`, `replace` or `remove` what stands at `path`, or `test` that it is `value`.

    A path is a JSON pointer, as `/order/lines/0/sku`; `~1` stands for a slash in a name, `~0` for a tilde,
    and `-` at the end for the place after the last of a list. All but `remove` need a `value`.
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
"""The steps of a change, in order."""


class ChangeSample(Struct, frozen=True, rename="camel"):
    """The effect of a change on one message: the changed lines, or the reason why it cannot be made.

    The first character of a line is its mark: `-` removed, `+` added, ` ` unchanged, `…` omitted.
    """

    id: str
    diff: tuple[str, ...] = ()
    problem: str = ""


def patched(body: bytes, patch: Iterable[PatchOperation]) -> bytes:
    """The body, changed; PatchFailed if it is no JSON, too large, or has not what the patch expects."""
    if len(body) > _LARGEST:
        raise PatchFailed(f"its body is larger than {_LARGEST // 1024} KiB")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise PatchFailed("its body is no JSON") from None
    try:
        for step in patch:
            document = _apply(document, step)
        written = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise PatchFailed("it is nested too deeply") from None
    return written.encode("utf-8", "surrogatepass")


def patch_problem(body: bytes, patch: Iterable[PatchOperation]) -> str:
    """Why the patch cannot be made to this body; empty if it can."""
    try:
        patched(body, patch)
    except PatchFailed as failed:
        return str(failed)
    return ""


def change_sample(name: str, body: bytes, patch: Iterable[PatchOperation]) -> ChangeSample:
    """What the patch would do to this body, for people."""
    try:
        after = patched(body, patch)
    except PatchFailed as failed:
        return ChangeSample(name, (), str(failed))
    sizes = ChangeSample(name, (f"… {len(body):,} bytes become {len(after):,}",))
    if max(len(body), len(after)) > _DIFF_BYTES:
        return sizes
    try:
        old, new = _pretty_lines(body), _pretty_lines(after)
    except RecursionError:  # laying it out goes deeper than reading it
        return sizes
    if old == new:
        return ChangeSample(name)
    lines = (f"{mark}{line}" for mark, line in diff_lines(old, new))
    # Lone surrogates cannot be encoded as UTF-8, so they are shown as escapes.
    shown = [
        line.encode("utf-8", "backslashreplace").decode() for line in islice(lines, _DIFF_LINES + 1)
    ]
    if len(shown) > _DIFF_LINES:
        shown[_DIFF_LINES:] = ["… more lines differ"]
    return ChangeSample(name, tuple(shown))


def _pretty_lines(body: bytes) -> list[str]:
    return json.dumps(json.loads(body), indent=2, ensure_ascii=False).splitlines()


def _apply(document: Any, step: PatchOperation) -> Any:
    if step.op == "test" and not step.path:
        return _test(document, document, step)
    if not step.path:
        if step.op == "remove":
            raise PatchFailed("the whole body cannot be removed")
        return deepcopy(step.value)
    *way, last = (name.replace("~1", "/").replace("~0", "~") for name in step.path[1:].split("/"))
    if len(way) >= _DEEPEST:
        raise PatchFailed(f"{step.path} has more than {_DEEPEST} names")
    parent = document
    for name in way:
        parent = _inside(parent, name, step)
    if step.op == "test":
        return _test(document, _inside(parent, last, step), step)
    if isinstance(parent, list) and step.op == "add":
        number = len(parent) if last == "-" else _number(last, len(parent) + 1, step)
        parent.insert(number, deepcopy(step.value))
        return document
    if not isinstance(parent, dict) or step.op != "add":
        _inside(parent, last, step)  # it must be there
    key: Any = last if isinstance(parent, dict) else int(last)
    if step.op == "remove":
        del parent[key]
    else:
        parent[key] = deepcopy(step.value)
    return document


def _test(document: Any, found: Any, step: PatchOperation) -> Any:
    # Python takes true for 1; JSON does not.
    if json.dumps(found, sort_keys=True) != json.dumps(step.value, sort_keys=True):
        raise PatchFailed(f"it has another value at {step.path or '/'} than expected")
    return document


def _inside(parent: Any, name: str, step: PatchOperation) -> Any:
    if isinstance(parent, dict) and name in parent:
        return parent[name]
    if isinstance(parent, list):
        return parent[_number(name, len(parent), step)]
    raise PatchFailed(f"it has nothing at {step.path}")


def _number(name: str, below: int, step: PatchOperation) -> int:
    if name.isdecimal() and name.isascii() and len(name) <= 7 and int(name) < below:
        return int(name)
    raise PatchFailed(f"it has nothing at {step.path}")
