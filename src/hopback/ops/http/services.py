"""The objects that are used to answer requests."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs

from hopback.ops.contract.requests import SessionRequest, Who
from hopback.ops.contract.roles import Grant, Principal, Role
from hopback.ops.contract.values import (
    Job,
    JobList,
    MessageView,
    OnProgress,
    Overview,
    QueueSummary,
    SessionView,
)
from hopback.ops.http.auth import Gate, forbidden
from hopback.ops.http.denials import Denial, Denials
from hopback.ops.http.problems import Refused, refusal_of
from hopback.ops.http.turns import CallerCounts, address_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from hopback.clock import Clock
    from hopback.ops.alerts.watch import Alerting
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.http.events import EventStreams
    from hopback.ops.http.heavy_requests import HeavyRequests
    from hopback.ops.http.keys import ApiKey
    from hopback.ops.http.overview import RecentAnswers
    from hopback.ops.http.settings import AdminSettings
    from hopback.ops.operations import Operations
    from hopback.ops.page.long_work import PageWork

_LOG = logging.getLogger("hopback.ops.http")

ValueT = TypeVar("ValueT")

NOBODY = Principal("", "nobody", "nobody", ())
"""A caller that is not authenticated."""


@dataclass(slots=True)
class SharedServices:
    """The objects shared by all brokers. `brokers` have the order of the settings.

    `first_read_s` limits how long a page waits for the first reading of a broker, in seconds. None
    means no limit. `opening` counts, for each caller id, the browse sessions that are being opened.
    """

    settings: AdminSettings
    gate: Gate
    streams: EventStreams
    heavy: HeavyRequests
    alerting: Alerting
    first_read_s: float | None
    brokers: tuple[Services, ...] = ()
    opening: CallerCounts = field(default_factory=CallerCounts)

    def visible_to(self, principal: Principal) -> list[tuple[Services, Principal]]:
        """Return the brokers that the caller can see, with the caller's grants for each of them."""
        callers = [(each, each.caller_here(principal)) for each in self.brokers]
        return [(each, caller) for each, caller in callers if caller.role is not None]


@dataclass(frozen=True, slots=True)
class Services:
    """The objects used to answer requests about one broker. `prefix` is the beginning of its paths.

    `working` contains the forms, by id, that are being processed while their visitor waits.
    """

    operations: Operations
    recent: RecentAnswers
    shared: SharedServices
    denials: Denials
    prefix: str = ""
    working: dict[str, PageWork] = field(default_factory=dict)

    @property
    def broker(self) -> ManagedBroker:
        """The broker that requests are about."""
        return self.operations.broker

    @property
    def name(self) -> str:
        """The name of the broker in the settings. It is empty if the broker does not have one."""
        return self.broker.name

    @property
    def clock(self) -> Clock:
        return self.broker.clock

    @property
    def is_first(self) -> bool:
        """Whether paths without a broker name refer to this broker."""
        return self.operations is self.shared.brokers[0].operations

    @property
    def spans_brokers(self) -> bool:
        """Whether requests are for paths without a broker name, and there are several brokers."""
        return not self.prefix and len(self.shared.brokers) > 1

    def add_prefix(self, value: ValueT) -> ValueT:
        """Add the path prefix to a value returned by the operations."""
        return add_prefix(value, self.prefix) if self.prefix else value

    def find_refusal(self, error: Exception, request: Request) -> Refused | None:
        """Return the refusal for a known error, with the path prefix added."""
        refused = refusal_of(error, request)
        job = None if refused is None else refused.more.get("job")
        if refused is None or not self.prefix or not isinstance(job, str):
            return refused
        more = {**refused.more, "job": self.prefix + job}
        return Refused(
            refused.status, refused.code, refused.detail, more=more, headers=refused.headers
        )

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """The API keys for this broker."""
        return self.shared.gate.keys.of(self.name, is_first=self.is_first)

    def grant(self, role: Role, queues: tuple[str, ...]) -> Grant:
        """Create a grant for this broker. A grant for the first broker does not contain its name."""
        return Grant(role, queues, "" if self.is_first else self.name)

    async def remove_key(self, key_id: str) -> ApiKey:
        """Revoke a key for this broker. Raises Refused if there is no such key."""
        await self.shared.gate.keys.refresh(self.clock.now())
        known = any(key.id == key_id for key in self.keys)
        found = await self.shared.gate.keys.remove(key_id) if known else None
        if found is None:
            raise Refused(404, "not-found", f"There is no key {key_id!r}.")
        return found

    def has(self, broker: str) -> bool:
        """Return True if this is the name of the broker. An empty name refers to the first broker."""
        return broker == self.name or (self.is_first and not broker)

    def manages(self, principal: Principal) -> bool:
        """Return True if the caller can administer the whole service. This requires an admin of the
        first broker.
        """
        return self.is_first and principal.allows_everywhere(Role.ADMIN)

    def caller_here(self, principal: Principal) -> Principal:
        """Return the caller with the grants for this broker."""
        return principal.at(self.name, is_first=self.is_first)

    def on_behalf_of(self, principal: Principal) -> Operations:
        """Return operations that act for this caller."""
        return self.operations.on_behalf_of(who(principal))

    def check_room(self, principal: Principal) -> None:
        """Raise Refused if the caller, or all callers together, would have too many browse sessions."""
        limits = self.shared.settings.limits
        # The limits apply to all brokers together, because they share the memory of the process.
        open_now = [view for each in self.shared.brokers for view in each.operations.sessions()]
        opening = self.shared.opening
        own = sum(view.by_id == principal.id for view in open_now) + opening[principal.id]
        if own >= limits.sessions_per_caller:
            raise Refused(
                429,
                "too-many-sessions",
                f"You have {own} open browse sessions. Release one first.",
                more={
                    "sessions": [
                        f"{'' if each.is_first else each.prefix}/admin/dlq/sessions/{view.id}"
                        for each in self.shared.brokers
                        for view in each.operations.sessions()
                        if view.by_id == principal.id
                    ]
                },
            )
        held = sum(view.held_bytes for view in open_now)
        sessions = len(open_now) + opening.total()
        if sessions >= limits.sessions or held >= limits.held_bytes:
            raise Refused(
                429,
                "too-much-held",
                f"{sessions} browse sessions hold {held} bytes. Wait until one ends.",
            )

    async def hold(
        self,
        principal: Principal,
        queue: str,
        asked: SessionRequest,
        on_progress: OnProgress | None = None,
    ) -> SessionView:
        """Open a browse session. It is released if the request is cancelled, because the caller
        does not know its id.
        """
        self.check_room(principal)
        operations = self.on_behalf_of(principal)
        self.shared.opening[principal.id] += 1
        try:
            view = await operations.open_session(queue, asked, on_progress=on_progress)
        finally:
            self.shared.opening.drop(principal.id)
        try:
            await self.recent.insights.remember(operations, view)
        except BaseException:
            await operations.release(view.id)
            raise
        return view

    async def record_denial(
        self, principal: Principal, request: Request, refused: Refused, queue: str
    ) -> None:
        """Record a refused change in the audit. Refusals with status 429 are not recorded."""
        if refused.status == 429:
            return
        details = {
            "method": request.method,
            "path": request.url.path[:500],
            "code": refused.code,
            "correlationId": request.state.correlation,
        }
        address = address_of(request)
        await self.denials.add(Denial(principal.id, principal.name, address, queue[:255], details))


@dataclass(frozen=True, slots=True)
class CallerRequest:
    """A request of an identified caller, either to the API or to a page."""

    request: Request
    services: Services
    principal: Principal
    path: dict[str, str]

    @property
    def operations(self) -> Operations:
        """Operations that act for the caller."""
        return self.services.on_behalf_of(self.principal)

    @property
    def session(self) -> SessionView:
        """The browse session in the path. Raises SessionOver if it has ended."""
        return self.operations.session(self.path["session"])

    async def job(self) -> Job:
        """Return the job in the path."""
        return await self.operations.job(self.path["job"])

    def need(self, role: Role, queue: str) -> None:
        """Raise Refused unless the caller has the role for the queue."""
        if not self.principal.allows(role, queue):
            raise forbidden(f"Expected the role {role} for queue {queue!r}.")


def add_prefix(value: ValueT, prefix: str) -> ValueT:
    """Add a prefix to the paths in a value."""
    match value:
        case Job() | SessionView():
            return structs.replace(value, url=prefix + value.url)
        case MessageView():
            return structs.replace(value, body_url=prefix + value.body_url)
        case QueueSummary(active_job=Job() as job):
            return structs.replace(value, active_job=add_prefix(job, prefix))
        case JobList() | Overview():
            return structs.replace(
                value, items=tuple(add_prefix(each, prefix) for each in value.items)
            )
    return value


def who(principal: Principal) -> Who:
    """Convert a caller to the form in which operations record it."""
    return Who(principal.id, principal.name)
