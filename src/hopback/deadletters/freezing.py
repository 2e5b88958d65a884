"""From a request to what a job is: checked, counted, frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.deadletters.archive import check_writable
from hopback.deadletters.filters import parse_filter
from hopback.deadletters.journal import JobSpec, SelectionSnapshot
from hopback.deadletters.requests import (
    HIGHEST_RATE,
    LONGEST_WATCH_S,
    MOST_IN_FLIGHT,
    MOST_REDRIVES,
    FromSession,
    JobKind,
    RedriveRequest,
)
from hopback.deadletters.session import Sifted
from hopback.errors import BadRequest

if TYPE_CHECKING:
    from hopback.deadletters.contract import DeadLetter
    from hopback.deadletters.requests import FromHead, Pace, Request, Settings
    from hopback.deadletters.session import BrowseSession

__all__ = [
    "check_request",
    "chosen_letters",
    "export_file",
    "frozen_head",
    "frozen_letters",
    "spec_of",
]

_LONGEST = 1000


def check_request(request: Request) -> None:
    """BadRequest or BadFilter for what could never be carried out."""
    if not request.reason.strip():
        raise BadRequest("reason", "a few words that say why; they are kept in the audit")
    if len(request.reason) > _LONGEST:
        raise BadRequest("reason", f"at most {_LONGEST} characters")
    if not isinstance(request, RedriveRequest) and request.confirm != request.queue:
        raise BadRequest("confirm", f"the name of the queue, {request.queue!r}, repeated")
    if (
        isinstance(request, RedriveRequest)
        and not 1 <= (request.max_redrives or 1) <= MOST_REDRIVES
    ):
        raise BadRequest("maxRedrives", f"1 to {MOST_REDRIVES}, got {request.max_redrives}")
    limit = None if isinstance(request.selection, FromSession) else request.selection.limit
    if limit is not None and limit < 1:
        raise BadRequest("limit", f"1 or more, got {limit}")
    parse_filter(request.selection.filter)
    _check_pace(request.pace)


def _check_pace(pace: Pace) -> None:
    if pace.rate is not None and not 0 < pace.rate <= HIGHEST_RATE:
        raise BadRequest("rate", f"messages per second above 0, got {pace.rate:g}")
    if not 1 <= pace.in_flight <= MOST_IN_FLIGHT:
        raise BadRequest("inFlight", f"1 to {MOST_IN_FLIGHT}, got {pace.in_flight}")
    if len(pace.ramp) > 20 or any(stage < 1 for stage in pace.ramp):
        raise BadRequest("ramp", "at most 20 stages of 1 message or more")
    if (pace.watch_s or 0) > LONGEST_WATCH_S:
        raise BadRequest("watchSeconds", f"at most {LONGEST_WATCH_S}, got {pace.watch_s:g}")
    if pace.tries < 1 or pace.pause_s < 0 or (pace.watch_s or 0) < 0:
        raise BadRequest("pace", "1 try or more, and waits that are not negative")


async def chosen_letters(session: BrowseSession, selection: FromSession) -> Sifted:
    """The letters that are meant, in the order of the queue; NoSuch for an id that is not held."""
    found = await session.sift(parse_filter(selection.filter))
    if not selection.ids:
        return found
    wanted = set(selection.ids)
    for ident in wanted - {letter.id for letter in found.letters}:
        session.letter(ident)
    chosen = tuple(letter for letter in found.letters if letter.id in wanted)
    return Sifted(session, chosen, found.not_looked_into)


def frozen_letters(
    session: BrowseSession, letters: tuple[DeadLetter, ...], text: str
) -> SelectionSnapshot:
    """Exactly these messages of a session."""
    return SelectionSnapshot(session.held, text, tuple(letter.digest for letter in letters))


def frozen_head(ready: int, selection: FromHead) -> SelectionSnapshot:
    """The first messages, as many as are there now."""
    count = ready if selection.limit is None else min(selection.limit, ready)
    return SelectionSnapshot(count, selection.filter, behind=ready - count)


def spec_of(request: Request, frozen: SelectionSnapshot, broker: str, *, stamped: bool) -> JobSpec:
    """What was asked for, with the selection frozen; `stamped` is what the design says."""
    if isinstance(request, RedriveRequest):
        return JobSpec(
            kind=JobKind.REDRIVE,
            queue=request.queue,
            broker=broker,
            selection=frozen,
            why=request.reason,
            by=request.by,
            target=request.target,
            pace=request.pace,
            max_redrives=request.max_redrives,
            stamped=stamped if request.stamped is None else request.stamped,
            operation=request.operation,
            key=request.key,
            forced=request.forced,
        )
    return JobSpec(
        kind=JobKind.DISCARD,
        queue=request.queue,
        broker=broker,
        selection=frozen,
        why=request.reason,
        by=request.by,
        pace=request.pace,
        export_to=request.export_to,
        key=request.key,
        forced=request.forced,
    )


def export_file(request: Request, settings: Settings, job: str) -> str:
    """Where a discard writes first; empty for a re-drive, and where nothing is to be written."""
    if isinstance(request, RedriveRequest) or not request.export:
        return ""
    if request.export_to:
        check_writable(request.export_to)
        return request.export_to
    if settings.exports is None:
        raise BadRequest("export", "a file to write to first, or no export at all")
    return str(settings.exports / f"{job}.ndjson")
