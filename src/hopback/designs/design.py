"""The definition of a design."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.durations import LONGEST_MS, parse_duration_ms
from hopback.errors import InvalidTopology, Problem
from hopback.topology.model import QueueType, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_LONGEST_NAME_BYTES = 255  # maximum length of a name in AMQP 0-9-1
_NO_PARAMS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DesignParameter:
    """A parameter of a design (`--param name=value`).

    `parse` converts the text to a value. It raises ValueError if the text is invalid.
    """

    name: str
    default: str
    expected: str
    parse: Callable[[str], object]
    summary: str
    argument: str = ""
    """The name of the factory's argument if it is not `name`."""


@dataclass(frozen=True, slots=True)
class CompletionEvent:
    """The event that is published after a re-drive."""

    exchange: str
    routing_key: str
    type: str
    version: int = 1


NO_COMPLETION: CompletionEvent | None = None
"""The value of designs without a completion event."""


@dataclass(frozen=True, slots=True)
class Design:
    """A predefined topology.

    If `stamps_redrives` is True, `x-redriven-…` headers are added to re-driven messages.
    `completion` is published after a re-drive.
    """

    name: str
    summary: str
    factory: Callable[..., Topology]
    parameters: tuple[DesignParameter, ...] = ()
    documented: bool = True
    """True if this is a documented system."""
    codes: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Maps event names to the codes that the documented system logs."""
    stamps_redrives: bool = False
    completion: CompletionEvent | None = NO_COMPLETION

    def build(self, params: Mapping[str, str] = _NO_PARAMS, hardened: bool = False) -> Topology:
        """Create the topology. Raises InvalidTopology if a parameter is invalid."""
        values: dict[str, object] = {}
        problems = []
        known = [parameter.name for parameter in self.parameters]
        expected = f"one of {', '.join(known)}" if known else f"no parameter ({self.name} has none)"
        for name in params:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                problems.append(Problem(f"params.{name}", expected + hint, repr(name)))
        for parameter in self.parameters:
            text = params.get(parameter.name, parameter.default)
            try:
                values[parameter.argument or parameter.name] = parameter.parse(text)
            except ValueError:
                problems.append(Problem(f"params.{parameter.name}", parameter.expected, repr(text)))
        refuse(problems, self.name)
        return self.factory(hardened=hardened, **values)


def refuse(problems: Sequence[Problem], design: str) -> None:
    """Raise InvalidTopology if there are any problems."""
    if problems:
        raise InvalidTopology(tuple(problems), where=design)


def names(text: str) -> tuple[str, ...]:
    """Parse a list of names separated by commas."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise ValueError(f"expected names separated by commas, got {text!r}")
    return found


def whole_number(text: str) -> int:
    """Parse a non-negative integer."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"expected a whole number, got {text!r}")
    return int(text)


def duration_ms(text: str) -> int:
    """Parse a duration and return it in milliseconds."""
    return parse_duration_ms(text)


def delays_ms(text: str) -> tuple[int, ...]:
    """Parse a list of durations and return them in milliseconds."""
    return tuple(map(duration_ms, names(text)))


def queue_type(text: str) -> QueueType:
    """Parse a queue type."""
    return QueueType(text)


def name_problems(path: str, name: str, *, room: int = 0) -> Iterator[Problem]:
    """Check the name of a queue. `room` is the length of the longest suffix in bytes."""
    longest = _LONGEST_NAME_BYTES - room
    if not name:
        yield Problem(path, "a name", "''")
    elif name.startswith("amq."):
        yield Problem(path, "a name not reserved by the broker (amq.…)", repr(name))
    elif len(name.encode()) > longest:
        yield Problem(path, f"a name of at most {longest} bytes", f"{len(name.encode())} bytes")


def delay_problems(path: str, delay_ms: int) -> Iterator[Problem]:
    """Check a delay."""
    if not 1 <= delay_ms <= LONGEST_MS:
        yield Problem(path, f"1 to {LONGEST_MS} ms", f"{delay_ms} ms")


def count_problems(path: str, count: int, *, least: int) -> Iterator[Problem]:
    """Check a number of attempts or retries."""
    if count < least:
        yield Problem(path, f"at least {least}", str(count))
