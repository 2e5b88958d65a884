"""The API about callers and the service itself: me, keys, audit, probes, metrics."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field
from starlette.responses import PlainTextResponse, Response

from hopback import __version__
from hopback.admin.api import ApiAnswer, ApiTable, Call, Empty, Reach
from hopback.admin.keys import ApiKey, new_key
from hopback.admin.problems import Refused
from hopback.admin.roles import EVERYTHING, Role
from hopback.deadletters.contract import AuditEntry, AuditList, Moment
from hopback.deadletters.requests import AuditQuery
from hopback.errors import HopbackError
from hopback.renamed import OldNameLookup, old_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopback.admin.services import Services

__all__ = [
    "ACCESS",
    "AuditRequest",
    "GrantAnswer",
    "KeyAnswer",
    "KeyList",
    "MadeKey",
    "MeAnswer",
    "NewKey",
    "ReadyAnswer",
    "key_answer",
    "metrics_of",
    "metrics_text",
]

_Name = Annotated[str, Meta(max_length=255)]
_DAY_S = 86_400.0  # seconds


ACCESS = ApiTable()
"""The rows of this part, each above what answers it."""


class GrantAnswer(Struct, frozen=True, rename="camel"):
    """A role, and the queues it holds for."""

    role: Role
    queues: list[str]


class MeAnswer(Struct, frozen=True, rename="camel"):
    """Who the caller is here."""

    id: str
    name: str
    kind: str
    role: Role | None
    grants: list[GrantAnswer]
    until: Moment | None


class NewKey(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A key to be made."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    role: Role
    queues: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=255)]], Meta(min_length=1, max_length=50)
    ] = field(default_factory=lambda: ["*"])
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
    """A new key with its secret, which is shown this once."""

    key: KeyAnswer
    secret: str


class KeyList(Struct, frozen=True, rename="camel"):
    """The keys."""

    items: list[KeyAnswer]
    total: int


class AuditRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Which entries."""

    by: _Name = ""
    action: _Name = ""
    queue: _Name = ""
    job: _Name = ""
    cursor: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class ReadyAnswer(Struct, frozen=True, rename="camel"):
    """Whether the service can do its work; strangers get no address and no error text."""

    ready: bool
    version: str
    broker: str
    reason: str


@ACCESS.row("GET", "/admin/me", answer=MeAnswer)
async def _show_me(call: Call[Empty, None]) -> MeAnswer:
    """Who the caller is here."""
    me = call.principal
    grants = [GrantAnswer(grant.role, list(grant.queues)) for grant in me.grants]
    return MeAnswer(me.id, me.name, me.kind, me.role, grants, Moment.known(me.until))


def key_answer(key: ApiKey) -> KeyAnswer:
    """A key without its secret."""
    return KeyAnswer(
        key.id,
        key.name,
        key.grant.role,
        list(key.grant.queues),
        Moment.known(key.expires),
        key.made_by,
        Moment.known(key.made_at),
    )


@ACCESS.row("GET", "/admin/keys", Role.ADMIN, Reach.EVERYWHERE, answer=KeyList)
async def _list_keys(call: Call[Empty, None]) -> KeyList:
    """The API keys, without their secrets."""
    ring = call.services.gate.keys
    await ring.refresh(call.services.clock.now())
    items = [key_answer(key) for key in call.services.keys]
    return KeyList(items, len(items))


@ACCESS.row(
    "POST", "/admin/keys", Role.ADMIN, Reach.EVERYWHERE, body=NewKey, answer=MadeKey, status=201
)
async def _make_key(call: Call[Empty, NewKey]) -> MadeKey:
    """A new API key; its secret is shown this once."""
    body, services = call.body, call.services
    now = services.clock.now()
    secret, key = new_key(
        body.name,
        services.grant(body.role, tuple(body.queues) or EVERYTHING),
        expires=now + body.days * _DAY_S,
        made_by=call.principal.name,
        now=now,
    )
    details = {"key": key.id, "name": key.name, "role": body.role.value}
    await call.operations.note("key.create", details=details)
    await services.gate.keys.add(key)
    return MadeKey(key_answer(key), secret)


@ACCESS.row("DELETE", "/admin/keys/{key}", Role.ADMIN, Reach.EVERYWHERE, status=204)
async def _delete_key(call: Call[Empty, None]) -> None:
    """Let a key open no more."""
    key = await call.services.remove_key(call.path["key"])
    details = {"key": key.id, "name": key.name}
    await call.operations.note("key.delete", details=details)


@ACCESS.row(
    "GET", "/admin/audit", Role.ADMIN, Reach.EVERYWHERE, query=AuditRequest, answer=AuditList
)
async def _list_audit(call: Call[AuditRequest, None]) -> AuditList:
    """What was done, the newest first."""
    asked = call.query
    query = AuditQuery(asked.by, asked.action, asked.queue, asked.job, asked.cursor, asked.limit)
    entries = await call.operations.audit(query)
    more = str(entries[-1].number) if len(entries) == asked.limit else None
    return AuditList(entries, more)


@ACCESS.row("GET", "/healthz", media=("text/plain",), public=True)
async def _healthz(_call: Call[Empty, None]) -> Response:
    """Whether the service is alive."""
    return PlainTextResponse("ok\n")


@ACCESS.row("GET", "/readyz", answer=ReadyAnswer, public=True, further=((503, ReadyAnswer),))
async def _readyz(call: Call[Empty, None]) -> ApiAnswer:
    """Whether the broker answers, too."""
    services = call.services
    error = (await services.sweep.get_or_last()).error
    known = None
    with suppress(Refused):  # a probe with a wrong key is still a probe
        known = await services.gate.identify(call.request)
    reason = "" if error is None else "the broker does not answer"
    if known is not None and isinstance(error, HopbackError):
        reason = str(error)
    broker = "" if known is None else services.live.address
    answer = ReadyAnswer(error is None, __version__, broker, reason)
    return ApiAnswer(answer, status=200 if error is None else 503)


@ACCESS.row("GET", "/metrics", media=("text/plain",), role=Role.VIEWER, reach=Reach.EVERYWHERE)
async def _metrics(call: Call[Empty, None]) -> Response:
    """Depths and sessions for Prometheus."""
    return Response(
        await metrics_text(call.services), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


async def metrics_text(services: Services) -> str:
    """Depths and jobs of one broker for Prometheus, from the cached sweep."""
    await services.sweep.get_or_last()
    return metrics_of([services])


def metrics_of(brokers: Sequence[Services], *, labelled: bool = False) -> str:
    """The metrics of these brokers as they were last read; `labelled` says of each whose it is."""
    up, dead_letters, sessions = [], [], []
    for each in brokers:
        name = f'broker="{_escaped(each.name)}"' if labelled else ""
        alone, beside = (f"{{{name}}}", f"{name},") if name else ("", "")
        swept = each.sweep.known
        up.append(
            f"hopback_admin_broker_up{alone} {int(swept is not None and swept.error is None)}"
        )
        dead_letters += [
            f'hopback_dead_letters{{{beside}queue="{_escaped(one.queue)}"}} {one.depth.total}'
            for one in (() if swept is None else swept.queues)
            if one.depth.total is not None
        ]
        sessions.append(f"hopback_admin_sessions{alone} {len(each.operations.sessions())}")
    lines = [
        "# HELP hopback_admin_broker_up Whether the broker answered the last sweep.",
        "# TYPE hopback_admin_broker_up gauge",
        *up,
        "# HELP hopback_dead_letters Messages in each dead-letter queue.",
        "# TYPE hopback_dead_letters gauge",
        *dead_letters,
        "# HELP hopback_admin_sessions Open browse sessions.",
        "# TYPE hopback_admin_sessions gauge",
        *sessions,
    ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _itself(entry: object) -> object:
    """An entry of the contract is its own answer."""
    return entry


__getattr__: OldNameLookup = old_names(
    __name__,
    {
        "AuditAnswer": (AuditEntry, "hopback.deadletters.AuditEntry"),
        "audit_answer": (_itself, "the entry itself, with hopback.deadletters.codec.encode"),
        "make_key": (_make_key, "POST /admin/keys"),
        "take_key": (_delete_key, "DELETE /admin/keys/{key}"),
    },
)
