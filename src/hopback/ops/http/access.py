"""The API and pages for the signed-in caller, for API keys and for the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from msgspec import Meta, Struct, field

from hopback.ops.contract import endpoints
from hopback.ops.contract.codec import convert
from hopback.ops.contract.queue_rules import EVERY_QUEUE, NO_QUEUE
from hopback.ops.contract.requests import AuditQuery
from hopback.ops.contract.roles import EVERYTHING, Role
from hopback.ops.contract.values import AuditList, Moment
from hopback.ops.http.api import ApiTable, Call
from hopback.ops.http.keys import ApiKey, new_key
from hopback.ops.http.session_cookies import set_cookie
from hopback.ops.page.pages import NOTICE_READ, Pages, Visit, own_page, see_other

if TYPE_CHECKING:
    from starlette.responses import Response

    from hopback.ops.contract.endpoints import Empty
    from hopback.ops.http.services import CallerRequest

_Name = Annotated[str, Meta(max_length=255)]
_DAY_S = 86_400.0  # seconds


ACCESS = ApiTable()
"""The endpoints of callers, keys and audit."""


class GrantAnswer(Struct, frozen=True, rename="camel"):
    """A role and its queues."""

    role: Role
    queues: list[str]


class MeAnswer(Struct, frozen=True, rename="camel"):
    """The identity and grants of the caller."""

    id: str
    name: str
    kind: str
    role: Role | None
    grants: list[GrantAnswer]
    until: Moment | None


class NewKey(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A new key."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    role: Role
    queues: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=255)]], Meta(min_length=1, max_length=50)
    ] = field(default_factory=lambda: [*EVERYTHING])
    days: Annotated[float, Meta(gt=0, le=3650)] = 90.0


class KeyAnswer(Struct, frozen=True, rename="camel"):
    """A key without its secret."""

    id: str
    name: str
    role: Role
    queues: list[str]
    expires_at: Moment | None
    made_by: str
    made_at: Moment | None


class MadeKey(Struct, frozen=True, rename="camel"):
    """A new key with its secret. The secret cannot be read again later."""

    key: KeyAnswer
    secret: str


class KeyList(Struct, frozen=True, rename="camel"):
    """The API keys without their secrets."""

    items: list[KeyAnswer]
    total: int


@ACCESS.row("GET", "/admin/me", None, NO_QUEUE, answer=MeAnswer)
async def _show_me(call: Call[Empty, None]) -> MeAnswer:
    """Return the identity and grants of the caller."""
    me = call.principal
    grants = [GrantAnswer(grant.role, list(grant.queues)) for grant in me.grants]
    return MeAnswer(me.id, me.name, me.kind, me.role, grants, Moment.known(me.until))


def key_answer(key: ApiKey) -> KeyAnswer:
    return KeyAnswer(
        key.id,
        key.name,
        key.grant.role,
        list(key.grant.queues),
        Moment.known(key.expires),
        key.made_by,
        Moment.known(key.made_at),
    )


@ACCESS.row("GET", "/admin/keys", Role.ADMIN, EVERY_QUEUE, answer=KeyList)
async def _list_keys(call: Call[Empty, None]) -> KeyList:
    """List the API keys, without their secrets."""
    ring = call.services.shared.gate.keys
    await ring.refresh(call.services.clock.now())
    items = [key_answer(key) for key in call.services.keys]
    return KeyList(items, len(items))


@ACCESS.row("POST", "/admin/keys", Role.ADMIN, EVERY_QUEUE, body=NewKey, answer=MadeKey, status=201)
async def _make_key(call: Call[Empty, NewKey]) -> MadeKey:
    """Create an API key. The response contains its secret, which cannot be read again."""
    secret, key = await _add_key(call, call.body)
    return MadeKey(key_answer(key), secret)


async def _add_key(asked: CallerRequest, new: NewKey) -> tuple[str, ApiKey]:
    """Create a key for the broker of the request, and return its secret and the key."""
    services, now = asked.services, asked.services.clock.now()
    secret, key = new_key(
        new.name,
        services.grant(new.role, tuple(new.queues)),
        expires=now + new.days * _DAY_S,
        made_by=asked.principal.name,
        now=now,
    )
    details = {"key": key.id, "name": key.name, "role": new.role.value}
    await asked.operations.note("key.create", details=details)
    await services.shared.gate.keys.add(key)
    return secret, key


@ACCESS.row("DELETE", "/admin/keys/{key}", Role.ADMIN, EVERY_QUEUE, status=204)
async def _delete_key(call: CallerRequest) -> None:
    """Revoke a key."""
    key = await call.services.remove_key(call.path["key"])
    await call.operations.note("key.delete", details={"key": key.id, "name": key.name})


@ACCESS.answer(endpoints.AUDIT)
async def _list_audit(call: Call[AuditQuery, None]) -> AuditList:
    """List the audit entries, newest first."""
    entries = await call.operations.audit(call.query)
    more = str(entries[-1].number) if len(entries) == call.query.limit else None
    return AuditList(entries, more)


_OLDER = 100  # audit entries per page. A link leads to older ones.
_NOTICE_S = 30 * 86_400  # seconds (30 days) after which a notice that was read is shown again


ACCESS_PAGES = Pages()
"""The pages of callers, keys and audit."""


@ACCESS_PAGES.post("/notice/read", None, NO_QUEUE)
async def _dismiss_notice(visit: Visit) -> Response:
    answer = see_other(own_page(visit.field("next", "/")))
    secure = visit.request.url.scheme == "https"
    set_cookie(answer, NOTICE_READ, "1", _NOTICE_S, secure=secure)
    return answer


@ACCESS_PAGES.get("/you", None, NO_QUEUE)
async def _you(visit: Visit, secret: str = "") -> Response:
    return visit.page(
        "you.html",
        manages=visit.principal.allows_everywhere(Role.ADMIN)
        and visit.services.shared.gate.asks_who,
        keys=visit.services.keys,
        keys_last=visit.services.shared.gate.keys.lasts,
        secret=secret,
    )


@ACCESS_PAGES.post("/keys", Role.ADMIN, EVERY_QUEUE)
async def _make_key_by_page(visit: Visit) -> Response:
    said = {
        "name": visit.field("name").strip(),
        "role": visit.field("role"),
        "queues": visit.field("queues").replace(",", " ").split() or [*EVERYTHING],
        "days": visit.number("days", 90, least=1, most=3650),
    }
    secret, _ = await _add_key(visit, convert(NewKey, said))
    return await _you(visit, secret)


@ACCESS_PAGES.post("/keys/{key}/delete", Role.ADMIN, EVERY_QUEUE)
async def _delete_key_by_page(visit: Visit) -> Response:
    await _delete_key(visit)
    return see_other("/you?told=key-deleted")


@ACCESS_PAGES.get("/audit", Role.ADMIN, EVERY_QUEUE)
async def _audit(visit: Visit) -> Response:
    before = visit.number("cursor", 0) or None
    asked = AuditQuery(
        visit.field("by"), visit.field("action"), visit.field("queue"), "", before, _OLDER
    )
    entries = await visit.operations.audit(asked)
    older = quote(str(entries[-1].number)) if len(entries) == _OLDER else ""
    return visit.page("audit.html", asked=asked, entries=entries, older=older)
