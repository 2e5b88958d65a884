"""The specification of a job: its request, and the facts that the planner added."""

from __future__ import annotations

from hopback.ops.contract.requests import (
    NOBODY,
    JobKind,
    JobRequest,
    Pace,
    Submission,
    Who,
)


class JobSpec(Submission, frozen=True, kw_only=True):
    """A request with its submission and the facts that the planner added. It never changes.

    The selection of the request contains the counted messages, without the ids of single messages. They are
    among the first `span` messages of the queue: those with these `digests`, or all that match the filter if
    `digests` is None. `behind` is the number of messages behind the first `span`, None if it was not counted.
    `target_text` is the target of a re-drive in words.
    """

    request: JobRequest
    by: Who = NOBODY
    broker: str
    span: int
    digests: tuple[str, ...] | None = None
    behind: int | None = None
    target_text: str = ""

    @property
    def kind(self) -> JobKind:
        return self.request.kind

    @property
    def queue(self) -> str:
        return self.request.queue

    @property
    def pace(self) -> Pace:
        return self.request.pace

    @property
    def force(self) -> bool:
        return self.request.force

    @property
    def filter(self) -> str:
        return self.request.selection.filter

    @property
    def most(self) -> int:
        """The maximum number of selected messages."""
        return self.span if self.digests is None else len(self.digests)
