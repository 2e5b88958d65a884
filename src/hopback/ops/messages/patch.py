"""Apply JSON patches (RFC 6902) to bodies, with limits for size and depth.

If a body cannot be changed, there is an error with the reason. The notation of numbers can change,
for example from `1.10` to `1.1`, but not their value.
"""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING, Any

from hopback.ops.contract.values import ChangeSample
from hopback.ops.messages.diff import diff_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.ops.contract.requests import PatchOperation


# bytes of a body, which take some tens of milliseconds. Larger bodies are not changed.
_LARGEST = 1024 * 1024
_DEEPEST = 50  # names in a path. Longer paths are refused.
_DIFF_LINES = 100  # lines in a preview. The rest is omitted.
# bytes of a body for which there is a preview. For larger ones, only the sizes are shown.
_DIFF_BYTES = 64 * 1024


class PatchFailed(ValueError):
    """A body cannot be changed. The message is the reason."""


def apply_patch(body: bytes, patch: Iterable[PatchOperation]) -> bytes:
    """Change a body. Raises PatchFailed if it is not JSON, too large, or an operation fails."""
    if len(body) > _LARGEST:
        raise PatchFailed(f"its body is larger than {_LARGEST // 1024} KiB")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise PatchFailed("its body is not JSON") from None
    try:
        for step in patch:
            document = _apply_step(document, step)
        written = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise PatchFailed("it is nested too deeply") from None
    return written.encode("utf-8", "surrogatepass")


def patch_problem(body: bytes, patch: Iterable[PatchOperation]) -> str:
    """Return why a patch cannot be applied to a body, or an empty string if it can."""
    try:
        apply_patch(body, patch)
    except PatchFailed as failed:
        return str(failed)
    return ""


def change_sample(name: str, body: bytes, patch: Iterable[PatchOperation]) -> ChangeSample:
    """Return a preview of the patched body."""
    try:
        after = apply_patch(body, patch)
    except PatchFailed as failed:
        return ChangeSample(name, (), str(failed))
    sizes = ChangeSample(name, (f"… {len(body):,} bytes become {len(after):,}",))
    if max(len(body), len(after)) > _DIFF_BYTES:
        return sizes
    try:
        old, new = _pretty_lines(body), _pretty_lines(after)
    except RecursionError:  # indenting uses more recursion than parsing
        return sizes
    if old == new:
        return ChangeSample(name)
    lines = (f"{mark}{line}" for mark, line in diff_lines(old, new))
    # Escape lone surrogates, because UTF-8 cannot encode them.
    shown = [
        line.encode("utf-8", "backslashreplace").decode() for line in islice(lines, _DIFF_LINES + 1)
    ]
    if len(shown) > _DIFF_LINES:
        shown[_DIFF_LINES:] = ["… more lines differ"]
    return ChangeSample(name, tuple(shown))


def _pretty_lines(body: bytes) -> list[str]:
    return json.dumps(json.loads(body), indent=2, ensure_ascii=False).splitlines()


def _apply_step(document: Any, step: PatchOperation) -> Any:
    if step.op == "test" and not step.path:
        return _test(document, document, step)
    if not step.path:
        if step.op == "remove":
            raise PatchFailed("the whole body cannot be removed")
        return deepcopy(step.value)
    *parents, last = (
        name.replace("~1", "/").replace("~0", "~") for name in step.path[1:].split("/")
    )
    if len(parents) >= _DEEPEST:
        raise PatchFailed(f"{step.path} has more than {_DEEPEST} names")
    parent = document
    for name in parents:
        parent = _inside(parent, name, step)
    if step.op == "test":
        return _test(document, _inside(parent, last, step), step)
    if isinstance(parent, list) and step.op == "add":
        number = len(parent) if last == "-" else _number(last, len(parent) + 1, step)
        parent.insert(number, deepcopy(step.value))
        return document
    if not isinstance(parent, dict) or step.op != "add":
        _inside(parent, last, step)  # raises an error if it is missing
    key: Any = last if isinstance(parent, dict) else int(last)
    if step.op == "remove":
        del parent[key]
    else:
        parent[key] = deepcopy(step.value)
    return document


def _test(document: Any, found: Any, step: PatchOperation) -> Any:
    # True equals 1 in Python, but not in JSON.
    if json.dumps(found, sort_keys=True) != json.dumps(step.value, sort_keys=True):
        raise PatchFailed(f"it has another value at {step.path or '/'} than expected")
    return document


def _inside(parent: Any, name: str, step: PatchOperation) -> Any:
    if isinstance(parent, dict) and name in parent:
        return parent[name]
    if isinstance(parent, list):
        return parent[_number(name, len(parent), step)]
    raise PatchFailed(f"it has no value at {step.path}")


def _number(name: str, below: int, step: PatchOperation) -> int:
    if name.isdecimal() and name.isascii() and len(name) <= 7 and int(name) < below:
        return int(name)
    raise PatchFailed(f"it has no value at {step.path}")
