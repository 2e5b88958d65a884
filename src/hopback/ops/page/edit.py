"""The form for sending an edited copy of a message."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hopback.errors import BadRequest, HopbackError, NotAllowed
from hopback.ops.contract.queue_rules import SESSION_QUEUE, QueueRule
from hopback.ops.contract.requests import Edit, EditRequest
from hopback.ops.contract.roles import Role
from hopback.ops.http.problems import refusal_of
from hopback.ops.messages.diff import diff_lines
from hopback.ops.messages.plain import pretty_json
from hopback.ops.page.pages import Pages, Visit, form_target, see_other
from hopback.ops.page.rendering import header_text, visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.responses import Response

    from hopback.message import Delivery

# largest body that can be edited in the form. The API has no such limit.
_EDITABLE_BYTES = 64 * 1024

EDIT_PAGES = Pages()


@EDIT_PAGES.get(
    "/sessions/{session}/messages/{message}/edit", Role.OPERATOR, SESSION_QUEUE, reads_broker=True
)
async def _edit(visit: Visit) -> Response:
    view = visit.session
    await visit.operations.message(
        view.id, visit.path["message"]
    )  # records in the audit that the message was shown
    return await _edit_page(visit, EditForm.of(visit))


async def _edit_targets(visit: Visit) -> Iterable[str] | None:
    if visit.field("step") not in _SENDING_STEPS:
        return ()
    target = form_target(visit.field("target"), visit.field("target_queue"))
    return await visit.operations.queues_reached(visit.session.queue, target)


_SENDING_STEPS = ("review", "go")


@EDIT_PAGES.post(
    "/sessions/{session}/messages/{message}/edit",
    Role.OPERATOR,
    SESSION_QUEUE,
    QueueRule("every queue that the copy reaches", _edit_targets),
)
async def _edit_step(visit: Visit) -> Response:
    view, form, step = visit.session, EditForm.of(visit), visit.field("step")
    if step not in _SENDING_STEPS:
        return await _edit_page(visit, form)
    try:
        asked = form.request
        if step == "review":
            return await _edit_page(visit, form, changes=form.changes(asked.edit))
        await visit.operations.edit_and_redrive(view.id, form.message, asked)
    except HopbackError as error:
        refused = refusal_of(error)
        if refused is None or refused.status not in (400, 409, 422):
            raise
        return await _edit_page(visit, form, trouble=f"{error}. {error.remedy}")
    session, message = quote(view.id, safe=""), quote(form.message, safe="")
    return see_other(f"/sessions/{session}/messages/{message}?told=copy-sent")


async def _edit_page(visit: Visit, form: EditForm, **more: Any) -> Response:
    if not visit.operations.settings.editing:
        raise NotAllowed("editing messages is disabled")
    view = visit.session
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
    """The form for editing a copy of a message.

    `editable` is the body as text. It is None if a form would change the body.
    """

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
        """Read the form. Until it is submitted, its values are those of the message."""
        delivery = visit.operations.delivery(visit.path["session"], visit.path["message"])
        text, said = _editable(delivery.body), visit.field("body").replace("\r\n", "\n")
        if text is not None and "\r\n" in text:  # browsers submit all line breaks as CRLF
            said = said.replace("\n", "\r\n")
        sent = visit.request.method == "POST"
        return cls(
            message=visit.path["message"],
            delivery=delivery,
            editable=text,
            body=said if sent and text is not None else text or "",
            content_type=visit.field("content_type", _form_text(delivery.properties.content_type)),
            headers=visit.field("headers"),
            without=visit.field("without"),
            target=visit.field("target"),
            target_queue=visit.field("target_queue"),
            reason=visit.field("reason").strip(),
        )

    @property
    def request(self) -> EditRequest:
        """The requested change. Raises BadRequest if it is invalid or if there is no difference."""
        said = [line.strip() for line in self.headers.splitlines() if line.strip()]
        wrong = next((line for line in said if not line.partition(":")[0].strip()), None)
        wrong = wrong or next((line for line in said if ":" not in line), None)
        if wrong is not None:
            raise BadRequest("headers to set", f"name: value, got {wrong!r}")
        if not self.reason:
            raise BadRequest("why", "a reason for the audit")
        pairs = (line.partition(":") for line in said)
        properties = self.delivery.properties
        edit = Edit(
            body=None if self.body == (self.editable or "") else self.body.encode(),
            content_type=None
            if self.content_type == _form_text(properties.content_type)
            else self.content_type,
            headers={name.strip(): value.strip() for name, _, value in pairs},
            without=frozenset(filter(None, map(str.strip, self.without.splitlines()))),
        )
        if edit == Edit():
            raise BadRequest("the copy", "a difference from the message")
        return EditRequest(
            edit=edit, reason=self.reason, target=form_target(self.target, self.target_queue)
        )

    def changes(self, edit: Edit) -> list[tuple[str, str]]:
        """Return the differences between the message and the copy as lines of a diff."""
        properties = self.delivery.properties
        names = sorted({*edit.headers, *edit.without})
        old = [
            f"{name}: {header_text(properties.headers[name])}"
            for name in names
            if name in properties.headers
        ]
        new = [
            f"{name}: {header_text(edit.headers[name])}" for name in names if name in edit.headers
        ]
        if edit.content_type is not None:
            old.insert(0, f"content type: {properties.content_type or ''}")
            new.insert(0, f"content type: {edit.content_type}")
        found = list(diff_lines(old, new))
        if edit.body is not None:
            found += diff_lines(_lines(self.delivery.body), _lines(edit.body))
        return [(mark, visible(line)) for mark, line in found]

    @property
    def hidden_fields(self) -> list[tuple[str, str]]:
        """Names and values of the hidden fields in the review."""
        names = ("body", "content_type", "headers", "without", "target", "target_queue", "reason")
        return [(name, getattr(self, name)) for name in names]


def _editable(body: bytes) -> str | None:
    """Return the body as text, or None if submitting it in a form would change it."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    others = text.replace("\r\n", "")
    mixed = "\r" in others or ("\n" in others and len(others) < len(text))
    hidden = any(unicodedata.category(each) == "Cc" and each not in "\r\n\t" for each in text)
    return None if mixed or hidden or len(body) > _EDITABLE_BYTES else text


def _form_text(text: str | None) -> str:
    """Return the text for a form field, or an empty string if submitting it would change it."""
    return text if text is not None and text.isprintable() else ""


def _lines(body: bytes) -> list[str]:
    """Split a body into lines. JSON is indented, so that each value is on its own line."""
    pretty = pretty_json(body, _EDITABLE_BYTES)
    if pretty is not None and not pretty[1]:
        return pretty[0].splitlines()
    return body.decode("utf-8", "replace").splitlines()
