"""What a broker says when an object is there in another form, read once, with one advice.

RabbitMQ's 406 names the first argument that differs, and both values as text; `x-queue-type` is said as
the type, which it is. What can be done about it
is the same whoever asks: `hopback run` that declares, `topology plan` with and without a management
API, `topology apply`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from hopback.topology.diff import Difference, advise_exchange, advise_queue
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.topology.model import Exchange

__all__ = ["Inequivalent", "difference_of", "read_inequivalent"]

_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' for (?P<kind>queue|exchange) '(?P<name>.*)' "
    r"in vhost '(?P<vhost>.*)': received (?P<declared>.+) but current is (?P<actual>.+)\Z",
    re.DOTALL,
)
_TYPED = re.compile(r"the value '(?P<value>.*)' of type '(?P<type>\w+)'\Z", re.DOTALL)
_ADVICE = "declare it as the broker has it, or migrate: arguments cannot change in place"


class Inequivalent(NamedTuple):
    """Which argument of what differs, and both values as the broker writes them; None for none."""

    kind: str
    name: str
    argument: str
    declared: str | None
    actual: str | None


def read_inequivalent(text: str) -> Inequivalent | None:
    """Read the text of a 406; None if it says something else."""
    found = _INEQUIVALENT.search(text)
    if found is None:
        return None
    return Inequivalent(
        found["kind"],
        found["name"],
        found["argument"],
        _value(found["declared"]),
        _value(found["actual"]),
    )


def _value(text: str) -> str | None:
    if text == "none":
        return None
    typed = _TYPED.match(text)
    return typed["value"] if typed else text.strip("'")


def difference_of(text: str, item: Exchange | Queue | None = None) -> Difference:
    """What differs and what can be done, for the object that was declared; the text where it is not read."""
    found = read_inequivalent(text)
    if found is None:
        return Difference("declaration", None, None, f"{text}; {_ADVICE}")
    if item is None:
        return Difference(found.argument, found.declared, found.actual, _ADVICE)
    desired: FieldValue = item.arguments.get(found.argument, _as_value(found.declared, None))
    actual = _as_value(found.actual, desired)
    advice = (
        advise_queue(item, found.argument, desired, actual)
        if isinstance(item, Queue)
        else advise_exchange(found.argument, desired, actual)
    )
    field = "type" if found.argument == "x-queue-type" else found.argument
    if field == "type" and isinstance(item, Queue):
        desired, actual = str(item.type), actual or str(QueueType.CLASSIC)
    return Difference(field, desired, actual, advice.text, advice.policy)


def _as_value(text: str | None, other: FieldValue) -> FieldValue:
    """The broker's text as a value: a number or a truth, unless text was declared."""
    if text is None or isinstance(other, str):
        return text
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text
