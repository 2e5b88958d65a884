"""The page that lists the dead-letter queues, with surveys, candidates and live updates."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from hopback.errors import StoreDamaged
from hopback.ops.contract.candidates import QueueAnswer
from hopback.ops.contract.codec import convert
from hopback.ops.contract.queue_rules import (
    EVERY_QUEUE,
    NO_QUEUE,
    VISIBLE_QUEUES,
    QueueRule,
    queues_of_answer,
)
from hopback.ops.contract.roles import Role
from hopback.ops.contract.values import LookProgress, QueueSummary
from hopback.ops.http.auth import forbidden
from hopback.ops.http.events import AT_ONCE_S, changes_of_board
from hopback.ops.http.overview import Insight
from hopback.ops.http.problems import trouble_title
from hopback.ops.http.sweep import Swept, read_all
from hopback.ops.page.errors import visible_errors
from hopback.ops.page.pages import Pages, Visit, see_other
from hopback.ops.page.rendering import visible
from hopback.text import count_of

if TYPE_CHECKING:
    from hopback.ops.contract.surveys import ErrorOverview
    from hopback.ops.http.services import Services

_LOG = logging.getLogger("hopback.ops.http")

# queues with the most messages, which are rendered in 60 ms. Others can be found with the search
# field.
_BOARD_ROWS = 200

BOARD_PAGES = Pages()


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A dead-letter queue in the list, and its broker."""

    services: Services
    summary: QueueSummary

    @property
    def trend(self) -> tuple[tuple[float, int], ...]:
        """The recorded depths of the last day. If there are fewer than two, these are the depths of
        the last minutes.
        """
        minutes = self.services.recent.sweep.trend(self.summary.queue)
        day = self.services.operations.surveys.trends.recent.get(self.summary.queue)
        if day is None or len(day.samples) < 2:
            return minutes
        kept = tuple((float(one.at), one.messages) for one in day.samples)
        return (*kept, *(one for one in minutes[-1:] if one[0] > kept[-1][0]))

    @property
    def arrived(self) -> int:
        """The minimum number of messages that have arrived in the last day, derived from the
        recorded depths.
        """
        day = self.services.operations.surveys.trends.recent.get(self.summary.queue)
        return 0 if day is None else day.arrived

    @property
    def insight(self) -> Insight | None:
        """The last insight for the queue."""
        return self.services.recent.insights.known.get(self.summary.queue)

    @property
    def is_held_here(self) -> bool:
        """Whether a browse session of this process holds messages of the queue.

        A consumer of the queue may then belong to the session.
        """
        return any(view.queue == self.summary.queue for view in self.services.operations.sessions())

    @property
    def is_full(self) -> bool:
        """Whether the queue has messages, held-back messages or an active job."""
        one = self.summary
        return one.exists and bool(one.depth.total or one.active_job or one.held_back)


@dataclass(frozen=True, slots=True)
class BoardSection:
    """A broker in the list, with the queues that the visitor can see."""

    services: Services
    swept: Swept | None
    rows: tuple[BoardRow, ...]

    @property
    def total(self) -> int:
        """The number of dead letters."""
        return sum(row.summary.depth.total or 0 for row in self.rows)

    @property
    def trouble(self) -> str:
        """Why the last reading has failed. It is empty if it has succeeded or not ended yet."""
        error = None if self.swept is None else self.swept.error
        if isinstance(error, StoreDamaged):
            return f"{error}. {error.remedy}"
        return "" if error is None else str(error)

    @property
    def trouble_title(self) -> str:
        """A title that names the part that failed."""
        name = self.services.name
        error = None if self.swept is None else self.swept.error
        return trouble_title(error, f"Broker {name}" if name else "The broker")


async def _read_sections(visit: Visit) -> list[BoardSection]:
    """Return this broker. The page for all brokers shows those that the visitor can see."""
    if not visit.services.spans_brokers:
        seen = [(visit.services, visit.principal)]
        sweep = visit.services.recent.sweep
        found: list[Swept | None] = [await sweep.get_or_last(visit.first_s)]
    else:
        seen = visit.services.shared.visible_to(visit.principal)
        found = await read_all([each.recent.sweep for each, _ in seen], visit.first_s)
    return [
        BoardSection(
            services,
            swept,
            tuple(
                BoardRow(services, one)
                for one in principal.visible(() if swept is None else swept.queues)
            ),
        )
        for (services, principal), swept in zip(seen, found, strict=True)
    ]


@BOARD_PAGES.get("/", None, VISIBLE_QUEUES)
async def _board(visit: Visit) -> Response:
    brokers = await _read_sections(visit)
    rows = [row for broker in brokers for row in broker.rows]
    wanted, several = visit.field("find").strip().lower(), visit.services.spans_brokers
    found = [row for row in rows if wanted in f"{row.services.name} {row.summary.queue}".lower()]
    full = [row for row in found if row.is_full]
    full.sort(key=lambda row: (-(row.summary.depth.total or 0), row.summary.queue))
    shown = full[:_BOARD_ROWS]
    quiet = [row for row in found if row.summary.exists and not row.is_full]
    # Check this before reading the errors. If no survey is running, its results are then complete.
    surveying = None if several else _survey_under_way(visit)
    errors, known = await visible_errors(visit)
    if surveying is not None:
        visit.services.recent.errors.expire()  # a running survey finds more errors
    surveys = {one.queue: one for one in known}
    top_errors: dict[str, Insight] = {}  # the most frequent error of each queue
    for one in errors:
        for at in one.queues:
            last, top = surveys.get(at.queue), top_errors.get(at.queue)
            if last is not None and last.at is not None and (top is None or at.count > top.count):
                top_errors[at.queue] = Insight(one.error, at.count, last.seen, None, last.at)
    now = visit.services.clock.now()
    # Statistics of the broker still contain the consumer of a survey some seconds after it has
    # ended.
    just_surveyed = {one.queue for one in known if now - (one.at or 0.0) < _COUNTED_S}
    if surveying is not None:
        just_surveyed.add(surveying.queue)
    candidates = None  # only admins can answer
    if not several and visit.principal.allows_everywhere(Role.ADMIN):
        candidates = await visit.services.recent.candidates.get_soon()
    read = [broker.swept.at for broker in brokers if broker.swept is not None]
    unread = len(brokers) - len(read)
    return visit.page(
        "dead_letters.html",
        headline=_headline(rows) if rows or not unread else "Reading the brokers…",
        unread=unread,
        brokers=brokers,
        several=several,
        find=visit.field("find"),
        rows=rows,
        full=shown,
        most=max((row.summary.depth.total or 0 for row in shown), default=0),
        unshown=len(full) - len(shown),
        quiet=quiet[:_BOARD_ROWS],
        quiet_count=len(quiet),
        missing=[row for row in found if not row.summary.exists],
        at=min(read, default=now),
        live_at=max(read, default=now),
        sources=", ".join(sorted({row.summary.depth.source for row in rows})),
        candidates=candidates,
        errors=errors[:_SHOWN_ERRORS],
        error_count=len(errors),
        error_messages=sum(one.count for one in errors),
        surveying=surveying,
        asks_again=unread
        or surveying is not None
        or visit.services.recent.errors.is_computing
        or visit.services.recent.candidates.is_computing,
        just_surveyed=just_surveyed,
        surveyed=top_errors,
        surveyed_at=max((one.at for one in known if one.at is not None), default=None),
        read_free={one.queue for one in known if one.is_stream},
        left_out={one.queue: one.why_not for one in known if one.why_not} if errors else {},
        surveys=not several and visit.principal.allows_everywhere(Role.OPERATOR),
    )


def _survey_under_way(visit: Visit) -> LookProgress | None:
    """Return the progress of a running survey. Surveys started here count until their task has ended."""
    begun = LookProgress("", 0, 0) if visit.services.recent.surveying else None
    return visit.operations.surveys.running or begun


# seconds. RabbitMQ counts every 5 s, reports the count 5 s later, and is read every second.
_COUNTED_S = 12.0
# errors on the list, so that the queues can be seen without scrolling. Another page shows all
# errors.
_SHOWN_ERRORS = 5


@BOARD_PAGES.post("/errors/survey", Role.OPERATOR, EVERY_QUEUE)
async def _survey(visit: Visit) -> Response:
    running = visit.services.recent.surveying
    if not running:
        asked = asyncio.create_task(visit.operations.errors(survey=True), name="survey")
        running.add(asked)
        asked.add_done_callback(running.discard)
        asked.add_done_callback(lambda _: visit.services.recent.errors.expire())
        asked.add_done_callback(_log_failure)
    done, _ = await asyncio.wait(tuple(running), timeout=AT_ONCE_S)
    for over in done:
        over.result()
    # If the survey is still running, the list shows its progress.
    return see_other("/?told=surveyed" if done else "/")


def _log_failure(survey: asyncio.Task[ErrorOverview]) -> None:
    if not survey.cancelled() and survey.exception() is not None:
        _LOG.warning("the survey ended early: %s", survey.exception())


def _answer_in(visit: Visit) -> QueueAnswer:
    said = {
        "queue": visit.field("queue"),
        "answer": visit.field("answer"),
        "mainQueue": visit.field("main_queue").strip(),
    }
    return convert(QueueAnswer, said)


async def _queues_of_answer(visit: Visit) -> tuple[str, ...]:
    return queues_of_answer(_answer_in(visit))


@BOARD_PAGES.post(
    "/candidates", Role.ADMIN, QueueRule("the queue and its main queue", _queues_of_answer)
)
async def _answer_candidate(visit: Visit) -> Response:
    await visit.operations.answer_candidate(_answer_in(visit))
    visit.services.recent.candidates.expire()
    visit.services.recent.sweep.forget()
    return see_other("/")


def _headline(rows: list[BoardRow]) -> str:
    depths = [row.summary.depth.total or 0 for row in rows if row.summary.exists]
    total, holding = sum(depths), sum(map(bool, depths))
    if not total:
        return "No dead letters"
    dead_letters = count_of(total, "dead letter")
    return f"{dead_letters} in {holding} of {len(rows)} queues"


@BOARD_PAGES.get("/live", None, NO_QUEUE)
async def _live(visit: Visit) -> Response:
    """Stream an event when the list is outdated. `at` is when the list was rendered, by default now."""
    services, at = visit.services, visit.field("at")
    shown_at = (
        float(at) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", at) else services.clock.now()
    )
    sweeps = [services.recent.sweep]
    if services.spans_brokers and visit.field("over") == "all":
        sweeps = [each.recent.sweep for each, _ in services.shared.visible_to(visit.principal)]
    elif visit.principal.role is None:
        raise forbidden()
    return services.shared.streams.open(changes_of_board(sweeps, shown_at), visit.principal)


@BOARD_PAGES.get("/alive", None, VISIBLE_QUEUES)
async def _alive(visit: Visit) -> Response:
    """Report whether a session still holds messages and whether the broker responds. Open pages
    poll this.
    """
    swept, asked = visit.services.recent.sweep.last, visit.field("session")
    held = any(
        view.id == asked and visit.principal.allows(Role.OPERATOR, view.queue)
        for view in visit.operations.sessions()
    )
    told = swept.error is not None and visit.principal.role is not None
    trouble = f"{trouble_title(swept.error)}: {visible(str(swept.error))}" if told else ""
    return JSONResponse(
        {"held": held, "trouble": trouble, "readAt": swept.at},
        headers={"Cache-Control": "no-store"},
    )
