"""What the command knows of a design: its name, its parameters and how to build it."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.errors import InvalidTopology, Problem
from hopback.topology.durations import LONGEST_MS, parse_duration_ms
from hopback.topology.model import QueueType, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_LONGEST_NAME_BYTES = 255  # the longest name that AMQP 0-9-1 can carry
_NO_PARAMS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DesignParameter:
    """A parameter of a design, as given on the command line: `--param name=value`.

    `parse` turns the text into a value and raises ValueError for what is no `expected`.
    """

    name: str
    default: str
    expected: str
    parse: Callable[[str], object]
    summary: str
    argument: str = ""
    """The name of the factory's argument, where it is not `name`."""


@dataclass(frozen=True, slots=True)
class CompletionEvent:
    """The event by which a design tells that a re-drive has ended: where it goes, what it is called."""

    exchange: str
    routing_key: str
    type: str
    version: int = 1


NO_COMPLETION: CompletionEvent | None = None
"""Nothing is published when a re-drive ends."""


@dataclass(frozen=True, slots=True)
class Design:
    """A ready-made topology: one of the documented systems, or Hopback's own.

    `stamps_redrives` writes the `x-redriven-…` headers to what is re-driven; `completion` is published
    when a re-drive has ended.
    """

    name: str
    summary: str
    factory: Callable[..., Topology]
    parameters: tuple[DesignParameter, ...] = ()
    documented: bool = True
    """Whether it reproduces a documented system; Hopback's own design does not."""
    codes: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The names by which the document logs events, to be given to `App`; see the table of events."""
    stamps_redrives: bool = False
    completion: CompletionEvent | None = NO_COMPLETION

    def build(self, params: Mapping[str, str] = _NO_PARAMS, hardened: bool = False) -> Topology:
        """The topology for these parameters; InvalidTopology lists everything wrong with them."""
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
    """`a,b` as a tuple of names; ValueError if one of them is empty."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise ValueError(f"expected names separated by commas, got {text!r}")
    return found


def whole_number(text: str) -> int:
    """A decimal number without sign; ValueError for anything else."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"expected a whole number, got {text!r}")
    return int(text)


def duration_ms(text: str) -> int:
    """`5s`, `250ms` or plain milliseconds, as milliseconds."""
    return parse_duration_ms(text)


def delays_ms(text: str) -> tuple[int, ...]:
    """`30s,5m` as milliseconds; ValueError if one of them is no duration."""
    return tuple(map(duration_ms, names(text)))


def queue_type(text: str) -> QueueType:
    """`quorum` or `classic`; ValueError for anything else."""
    return QueueType(text)


def name_problems(path: str, name: str, *, room: int = 0) -> Iterator[Problem]:
    """What keeps `name` from naming a queue; `room` is what the design appends to it, in bytes."""
    longest = _LONGEST_NAME_BYTES - room
    if not name:
        yield Problem(path, "a name", "''")
    elif name.startswith("amq."):
        yield Problem(path, "a name not reserved by the broker (amq.…)", repr(name))
    elif len(name.encode()) > longest:
        yield Problem(path, f"a name of at most {longest} bytes", f"{len(name.encode())} bytes")


def delay_problems(path: str, delay_ms: int) -> Iterator[Problem]:
    """What keeps `delay_ms` from being a waiting time."""
    if not 1 <= delay_ms <= LONGEST_MS:
        yield Problem(path, f"1 to {LONGEST_MS} ms", f"{delay_ms} ms")


def count_problems(path: str, count: int, *, least: int) -> Iterator[Problem]:
    """What keeps `count` from being a number of attempts or retries."""
    if count < least:
        yield Problem(path, f"at least {least}", str(count))
