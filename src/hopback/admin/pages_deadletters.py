"""The pages of dead letters: the list, a queue, a browse session, a message."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hopback.admin.events import changes_of_board
from hopback.admin.pages import Pages, chosen, see_other
from hopback.admin.problems import Refused, refusal_of
from hopback.admin.rendering import Form, diff_lines, payload_of, visible
from hopback.admin.roles import Role
from hopback.admin.services import need_target
from hopback.deadletters.contract import Page
from hopback.deadletters.message import (
    amqp_type,
    plain_headers,
    plain_properties,
    plain_value,
    pretty_json,
)
from hopback.deadletters.requests import Edit, EditRequest, GroupBy, Window
from hopback.errors import BadFilter, BadRequest, HopbackError, NotAllowed

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.admin.pages import Visit
    from hopback.deadletters.contract import Group, QueueSummary, SessionView
    from hopback.message import Delivery

__all__ = ["DEADLETTER_PAGES", "EditForm", "group_filter"]

# As much as one page can show and a reader takes in; the API gives the rest.
_PAGE = 50
_GROUPS = 100
_VALUE_SHOWN = 2000  # characters of a header
_EDITABLE_BYTES = 64 * 1024  # what a field of a form holds with ease; the API takes any body


DEADLETTER_PAGES = Pages()
"""The rows of this part."""


@DEADLETTER_PAGES.get("/")
async def _board(visit: Visit) -> Response:
    services = visit.services
    swept = await services.sweep.get_or_last()
    seen = [one for one in swept.queues if visit.principal.allows(Role.VIEWER, one.queue)]
    full = [
        one for one in seen if one.exists and (one.depth.total or one.active_job or one.held_back)
    ]
    full.sort(key=lambda one: (-(one.depth.total or 0), one.queue))
    return visit.page(
        "dead_letters.html",
        headline=_headline(full, seen),
        queues=seen,
        full=full,
        quiet=[one for one in seen if one.exists and one not in full],
        missing=[one for one in seen if not one.exists],
        trends={one.queue: services.sweep.trend(one.queue) for one in full},
        insights=services.insights.known,
        at=swept.at,
        sources=", ".join(sorted({one.depth.source for one in seen})),
        error=None if swept.error is None else str(swept.error),
    )


def _headline(full: list[QueueSummary], seen: list[QueueSummary]) -> str:
    total = sum(one.depth.total or 0 for one in full)
    if not total:
        return "No dead letters"
    dead_letters = f"{total:,} dead letter{'s' if total != 1 else ''}"
    holding = sum(bool(one.depth.total) for one in full)
    return f"{dead_letters} in {holding} of {len(seen)} queues"


@DEADLETTER_PAGES.get("/live")
async def _live(visit: Visit) -> Response:
    """When what was shown at that moment is out of date; from now on, if none is given."""
    services, at = visit.services, visit.field("at")
    shown_at = (
        float(at) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", at) else services.clock.now()
    )
    return services.streams.open(changes_of_board(services.sweep, shown_at), visit.principal)


@DEADLETTER_PAGES.get("/queues/{queue}")
async def _queue(visit: Visit) -> Response:
    operations, name = visit.operations, visit.path["queue"]
    visit.need(Role.VIEWER, name)
    return visit.page(
        "queue.html",
        detail=await operations.queue(name),
        operator=visit.principal.allows(Role.OPERATOR, name),
        sessions=[view for view in operations.sessions() if view.queue == name],
        jobs=await operations.jobs(queue=name, limit=5),
    )


@DEADLETTER_PAGES.post("/queues/{queue}/look")
async def _look(visit: Visit) -> Response:
    operations, name = visit.operations, visit.path["queue"]
    visit.need(Role.OPERATOR, name)
    limit = visit.number("limit", 100, least=1, most=10_000)
    minutes = visit.number("minutes", 5, least=1, most=25)
    visit.services.check_room(visit.principal)
    view = await operations.open_session(
        name,
        Window(limit, seconds=minutes * 60.0),
        forced=visit.field("how") == "force",
        lift=visit.field("how") == "lift",
    )
    await visit.services.insights.remember(operations, view)
    return see_other(f"/sessions/{quote(view.id, safe='')}")


def _held(visit: Visit) -> SessionView:
    view = visit.operations.session(visit.path["session"])
    visit.need(Role.OPERATOR, view.queue)
    return view


@DEADLETTER_PAGES.post("/queues/{queue}/restore-limit")
async def _restore_limit(visit: Visit) -> Response:
    name = visit.path["queue"]
    visit.need(Role.OPERATOR, name)
    await visit.operations.restore_limit(name, reason=visit.field("reason").strip())
    return see_other(f"/queues/{quote(name, safe='')}?told=limit-restored")


@DEADLETTER_PAGES.get("/sessions/{session}")
async def _session(visit: Visit) -> Response:
    view, operations = _held(visit), visit.operations
    by = GroupBy(visit.field("by")) if visit.field("by") in set(GroupBy) else GroupBy.FINGERPRINT
    text, cursor = visit.field("filter"), visit.number("cursor", 0)
    bad_filter, page = "", Page((), 0, None)
    try:
        page = await operations.messages(view.id, text, cursor=cursor, size=_PAGE)
    except BadFilter as error:
        bad_filter = str(error)
    groups = (await operations.groups(view.id, by)).items
    shown = groups[:_GROUPS]
    return visit.page(
        "session.html",
        view=view,
        by=by.value,
        groups=shown,
        more_groups=len(groups) - len(shown),
        group_filters={group.key: group_filter(by, group) for group in shown},
        filter=text,
        bad_filter=bad_filter,
        page=page,
        cursor=cursor,
    )


def group_filter(by: GroupBy, group: Group) -> str:
    """The filter that matches exactly the messages of a group."""
    field = "group" if by is GroupBy.FINGERPRINT else by.value
    escaped = group.key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{field}:"{escaped}"' if any(not c.isalnum() for c in escaped) else f"{field}:{escaped}"


@DEADLETTER_PAGES.post("/sessions/{session}/renew")
async def _renew(visit: Visit) -> Response:
    view = _held(visit)
    await visit.operations.renew(view.id)
    await visit.operations.note("session.renew", queue=view.queue, details={"session": view.id})
    return see_other(f"/sessions/{quote(view.id, safe='')}")


@DEADLETTER_PAGES.post("/sessions/{session}/release")
async def _release(visit: Visit) -> Response:
    view = _held(visit)
    await visit.operations.release(view.id)
    await visit.operations.note("session.release", queue=view.queue, details={"session": view.id})
    return see_other(f"/queues/{quote(view.queue, safe='')}?told=released")


@DEADLETTER_PAGES.get("/sessions/{session}/messages/{message}")
async def _message(visit: Visit) -> Response:
    view = _held(visit)
    message = await visit.operations.message(view.id, visit.path["message"])
    form = visit.field("form", Form.PRETTY.value)
    if form not in set(Form):
        raise Refused(400, "bad-form", f"form: expected one of {', '.join(Form)}, got {form!r}.")
    delivery = visit.operations.delivery(view.id, message.dead_letter.id)
    headers, more_headers = plain_headers(delivery.properties.headers)
    payload = payload_of(delivery.body, Form(form), delivery.properties.content_encoding)
    return visit.page(
        "message.html",
        message=message,
        dead_letter=message.dead_letter,
        session=view.id,
        payload=payload,
        form=form,
        content_type=delivery.properties.content_type or "",
        properties=list(_properties(delivery).items()),
        headers=[(name, amqp_type(value), _shown(value)) for name, value in sorted(headers)],
        more_headers=more_headers,
        editing=visit.operations.settings.editing,
    )


@DEADLETTER_PAGES.get("/sessions/{session}/messages/{message}/edit")
async def _edit(visit: Visit) -> Response:
    view = _held(visit)
    await visit.operations.message(view.id, visit.path["message"])  # that it is shown is audited
    return await _edit_page(visit, EditForm.of(visit))


@DEADLETTER_PAGES.post("/sessions/{session}/messages/{message}/edit")
async def _edit_step(visit: Visit) -> Response:
    view, form, step = _held(visit), EditForm.of(visit), visit.field("step")
    if step not in ("review", "go"):
        return await _edit_page(visit, form)
    try:
        asked = form.request
        await need_target(visit.operations, visit.principal, view.queue, asked.target)
        if step == "review":
            return await _edit_page(visit, form, changes=form.changes(asked.edit))
        await visit.operations.edit_and_redrive(
            view.id, form.message, asked.edit, target=asked.target, reason=asked.reason
        )
    except HopbackError as error:
        refused = refusal_of(error)
        if refused is None or refused.status not in (400, 409, 422):
            raise
        return await _edit_page(visit, form, trouble=f"{error}. {error.remedy}")
    session, message = quote(view.id, safe=""), quote(form.message, safe="")
    return see_other(f"/sessions/{session}/messages/{message}?told=copy-sent")


async def _edit_page(visit: Visit, form: EditForm, **more: Any) -> Response:
    if not visit.operations.settings.editing:
        raise NotAllowed("editing messages is switched off here")
    view = _held(visit)
    detail = await visit.operations.queue(view.queue)
    return visit.page(
        "edit.html",
        form=form,
        queue=view.queue,
        session=view.id,
        targets=detail.targets,
        **{"changes": None, "trouble": "", **more},
    )


@dataclass(frozen=True, slots=True)
class EditForm:
    """What was said of a changed copy; `editable` None: its body is not text that a form can carry."""

    message: str
    delivery: Delivery
    editable: str | None
    body: str
    content_type: str
    headers: str
    without: str
    target: str
    target_queue: str
    reason: str

    @classmethod
    def of(cls, visit: Visit) -> EditForm:
        """Read it from the fields; where nothing was sent yet, from the message."""
        delivery = visit.operations.delivery(visit.path["session"], visit.path["message"])
        text, said = _editable(delivery.body), visit.field("body").replace("\r\n", "\n")
        if text is not None and "\r\n" in text:  # a form makes all line ends alike
            said = said.replace("\n", "\r\n")
        sent = visit.request.method == "POST"
        return cls(
            message=visit.path["message"],
            delivery=delivery,
            editable=text,
            body=said if sent and text is not None else text or "",
            content_type=visit.field("content_type", delivery.properties.content_type or ""),
            headers=visit.field("headers"),
            without=visit.field("without"),
            target=visit.field("target"),
            target_queue=visit.field("target_queue"),
            reason=visit.field("reason").strip(),
        )

    @property
    def request(self) -> EditRequest:
        """What is asked for; BadRequest if it changes nothing, or says something that cannot be read."""
        said = [line.strip() for line in self.headers.splitlines() if line.strip()]
        wrong = next((line for line in said if not line.partition(":")[0].strip()), None)
        wrong = wrong or next((line for line in said if ":" not in line), None)
        if wrong is not None:
            raise BadRequest("headers to set", f"name: value, got {wrong!r}")
        if not self.reason:
            raise BadRequest("why", "a reason; everyone reads it later")
        pairs = (line.partition(":") for line in said)
        properties = self.delivery.properties
        edit = Edit(
            body=None if self.body == (self.editable or "") else self.body.encode(),
            content_type=None
            if self.content_type == (properties.content_type or "")
            else self.content_type,
            headers={name.strip(): value.strip() for name, _, value in pairs},
            without=frozenset(filter(None, map(str.strip, self.without.splitlines()))),
        )
        if edit == Edit():
            raise BadRequest("the copy", "something that differs from the message")
        return EditRequest(
            edit=edit, reason=self.reason, target=chosen(self.target, self.target_queue)
        )

    def changes(self, edit: Edit) -> list[tuple[str, str]]:
        """The copy beside the message, line by line, as a diff."""
        properties = self.delivery.properties
        names = sorted({*edit.headers, *edit.without})
        old = [
            f"{name}: {_shown(properties.headers[name])}"
            for name in names
            if name in properties.headers
        ]
        new = [f"{name}: {_shown(edit.headers[name])}" for name in names if name in edit.headers]
        if edit.content_type is not None:
            old.insert(0, f"content type: {properties.content_type or ''}")
            new.insert(0, f"content type: {edit.content_type}")
        found = list(diff_lines(old, new))
        if edit.body is not None:
            found += diff_lines(_lines(self.delivery.body), _lines(edit.body))
        return [(mark, visible(line)) for mark, line in found]

    @property
    def carried(self) -> list[tuple[str, str]]:
        """What was said, for the hidden fields of the review."""
        names = ("body", "content_type", "headers", "without", "target", "target_queue", "reason")
        return [(name, getattr(self, name)) for name in names]


def _editable(body: bytes) -> str | None:
    """The body as text that a form gives back unchanged; None where it would not."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    others = text.replace("\r\n", "")
    mixed = "\r" in others or ("\n" in others and len(others) < len(text))
    hidden = any(unicodedata.category(each) == "Cc" and each not in "\r\n\t" for each in text)
    return None if mixed or hidden or len(body) > _EDITABLE_BYTES else text


def _lines(body: bytes) -> list[str]:
    """The lines of a body; of JSON, with indentation, so that a change has a line of its own."""
    pretty = pretty_json(body, _EDITABLE_BYTES)
    if pretty is not None and not pretty[1]:
        return pretty[0].splitlines()
    return body.decode("utf-8", "replace").splitlines()


def _properties(delivery: Delivery) -> dict[str, str]:
    named = {"exchange": delivery.exchange, "routingKey": delivery.routing_key}
    named |= {name: str(value) for name, value in plain_properties(delivery.properties).items()}
    return named | {"redelivered": "yes" if delivery.redelivered else "no"}


def _shown(value: Any) -> str:
    """A header's value as text: plain ones as they are, the rest as JSON."""
    plain = plain_value(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, indent=1)
    cut = text[:_VALUE_SHOWN]
    return visible(cut, lines=True) + ("…" if len(text) > len(cut) else "")
