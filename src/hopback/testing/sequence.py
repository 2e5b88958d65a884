"""A timeline as a Mermaid sequence diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.testing.timeline import TimelineStep
from hopback.topology.diagram.labels import Ids, label
from hopback.topology.durations import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.testing.timeline import Timeline, TimelineEvent

__all__ = ["sequence_of"]

_ARROWS = {
    TimelineStep.PUBLISHED: "publisher->>{queue}",
    TimelineStep.RETURNED: "{last}->>{queue}",
    TimelineStep.RUN: "{queue}->>handler",
    TimelineStep.WAITS: "handler-->>{queue}",
    TimelineStep.PARKED: "handler-->>{queue}",
    TimelineStep.DONE: "handler->>{queue}",
    TimelineStep.COPY: "publisher->>{queue}",
    TimelineStep.EXTRA: "{last}->>{queue}",
    TimelineStep.LOST: "{last}-x{queue}",
}


def sequence_of(timeline: Timeline) -> str:
    """The timeline as Mermaid: publisher, handler, and every queue that the message saw."""
    names = dict.fromkeys([timeline.queue, *(entry.queue for entry in timeline.entries)])
    ids = Ids()
    known = {name: ids.of("q", name) for name in names}
    lines = ["sequenceDiagram", "    participant publisher"]
    for name, alias in known.items():
        lines.append(f"    participant {alias} as {label(name)}")
        if name == timeline.queue:
            lines.append("    participant handler")
    lines += (f"    {line}" for line in _messages(timeline, known))
    return "\n".join(lines) + "\n"


def _messages(timeline: Timeline, known: dict[str, str]) -> Iterator[str]:
    """One arrow for each entry; what returns comes from where the message waited last."""
    last = known[timeline.queue]
    for entry in timeline.entries:
        arrow = _ARROWS[entry.step].format(queue=known[entry.queue], last=last)
        yield f"{arrow}: {label(_label(entry))}"
        if entry.step is TimelineStep.WAITS:
            last = known[entry.queue]


def _label(entry: TimelineEvent) -> str:
    return f"{format_duration(entry.at_ms)}, {entry.told}"
