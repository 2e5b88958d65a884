"""The settings file of the service: sign-in, limits, retention, alerts, brokers.

It is a TOML file without secrets. For each secret it names an environment variable.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta, Struct, field

from hopback.broker.named_brokers import BrokerSettings, broker_names
from hopback.errors import HopbackError
from hopback.ops.alerts.settings import AlertSettings
from hopback.ops.contract.roles import EVERYTHING, Grant, Role
from hopback.ops.http.keys import is_key_name
from hopback.ops.http.tokens import (  # noqa: TC001  msgspec reads them at run time
    GrantSettings,
    JwtSettings,
)
from hopback.ops.jobs.retention import AUDIT_DAYS, JOB_DAYS
from hopback.ops.oidc.settings import OidcSettings  # noqa: TC001  msgspec reads it at run time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_SECRET_BYTES = (
    32  # minimum bytes of a secret: the output of HMAC-SHA-256. Shorter ones are refused.
)

_Days = Annotated[int, Meta(ge=0, le=36_500)]
_Positive = Annotated[int, Meta(ge=1)]
_Text = Annotated[str, Meta(min_length=1, max_length=500)]


class BadSettings(HopbackError):
    """The settings of the service are wrong."""

    remedy: ClassVar[str] = "Correct the named entry. The guide of the page shows a whole file."


class KeySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """An API key, stored as its hash."""

    name: _Text
    hash: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
    role: Role
    queues: tuple[_Text, ...] = EVERYTHING
    expires: float | None = None
    broker: str = ""
    """Name or pattern of brokers. Empty means the first broker."""


class AccessSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Sign-in. Without tokens and keys there is none, and the service serves only this machine."""

    jwt: JwtSettings | None = None
    oidc: OidcSettings | None = None
    grants: tuple[GrantSettings, ...] = ()
    keys: tuple[KeySettings, ...] = ()
    session_secret_env: str = ""
    session_hours: Annotated[float, Meta(gt=0, le=168)] = 8.0


class RequestLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of requests. Rates apply to each caller."""

    request_bytes: _Positive = 1024 * 1024
    request_seconds: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """For a whole request body. Then the answer is 408."""
    import_bytes: _Positive = 256 * 1024 * 1024
    import_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 3600.0
    """For an imported file."""
    requests_per_second: _Positive = 1000
    burst: _Positive = 2000
    sign_ins_per_minute: _Positive = 20
    failures_per_minute: _Positive = 60
    """Wrong credentials of one address. Then the answer is 429 without a check."""
    event_streams: _Positive = 200
    event_streams_per_caller: _Positive = 20
    sessions: _Positive = 20
    sessions_per_caller: _Positive = 5
    held_bytes: _Positive = 256 * 1024 * 1024
    heavy_requests: _Positive = 12
    """Imports, exports, searches, rehearsals and dry runs that run at the same time."""
    heavy_requests_per_caller: _Positive = 4
    heavy_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 3600.0
    """The answer of a heavy request is cut off after this time."""


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Days for which audit, finished jobs and files of discards are kept. 0 keeps them forever."""

    audit_days: _Days = AUDIT_DAYS
    job_days: _Days = JOB_DAYS
    export_days: _Days = 0
    """The files are the last copies of discarded messages, so they are kept by default."""


class JobSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Handling of jobs whose process has died."""

    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    """A process that does not renew its lease for this time counts as dead. Use one value per store."""
    take_over: bool = False
    """Resume the jobs of dead processes automatically."""


class DeadLetterSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Features for callers who may re-drive."""

    editing: bool = False
    """Allow to send a changed copy of a dead letter back."""
    survey_minutes: Annotated[int, Meta(ge=0, le=1440)] = 0
    """Minutes between surveys of all queues that are safe to read. 0 surveys only on request."""


class AdminSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole settings file."""

    auth: AccessSettings = field(default_factory=AccessSettings)
    limits: RequestLimits = field(default_factory=RequestLimits)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    deadletters: DeadLetterSettings = field(default_factory=DeadLetterSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    jobs: JobSettings = field(default_factory=JobSettings)
    brokers: tuple[BrokerSettings, ...] = ()
    """The brokers of the service. The first one is also served under the paths without a name."""

    @property
    def asks_who(self) -> bool:
        """Whether callers have to sign in."""
        auth = self.auth
        return auth.jwt is not None or auth.oidc is not None or bool(auth.keys)


def read_settings(path: Path, environment: Mapping[str, str]) -> AdminSettings:
    """Read a settings file. Raises BadSettings with the wrong entry."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSettings(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path}: expected TOML, {error}") from error
    return parse_settings(document, environment, str(path))


def parse_settings(
    document: Mapping[str, object], environment: Mapping[str, str], where: str
) -> AdminSettings:
    """Read settings from a document. `where` is its name in errors."""
    try:
        settings = msgspec.convert(document, AdminSettings)
    except msgspec.ValidationError as error:
        raise BadSettings(f"{where}: {error}") from error
    problem = next(_problems(settings, environment), None)
    if problem is not None:
        raise BadSettings(f"{where}: {problem}")
    return settings


def _problems(settings: AdminSettings, environment: Mapping[str, str]) -> Iterator[str]:
    auth = settings.auth
    for key in auth.keys:
        if not is_key_name(key.name):
            expected = "names of 1 to 100 printable characters"
            yield f"auth.keys: expected {expected}, got {key.name!r}"
    if auth.jwt is not None:
        if (problem := auth.jwt.problem()) is not None:
            yield problem
        name = auth.jwt.secret_env
        shared = environment.get(name)
        if name and shared is None:
            yield f"auth.jwt.secret_env: expected a secret in {name}, it is not set"
        elif name and shared is not None and len(shared.encode()) < _SECRET_BYTES:
            yield f"auth.jwt.secret_env: expected at least {_SECRET_BYTES} bytes in {name}"
    if auth.oidc is not None and (problem := auth.oidc.problem(environment)) is not None:
        yield problem
    # Without the variable a random secret is used, and the log reports it.
    secret = environment.get(auth.session_secret_env)
    if secret is not None and len(secret.encode()) < _SECRET_BYTES:
        expected = f"at least {_SECRET_BYTES} bytes in {auth.session_secret_env}"
        yield f"auth.session_secret_env: expected {expected}"
    if (problem := settings.alerts.problem(environment)) is not None:
        yield problem
    # A grant for an unknown broker is a mistake, because it has no effect.
    names = broker_names(settings.brokers)
    asked = [("auth.grants", each.grant) for each in auth.grants]
    asked += [("auth.keys", Grant(key.role, key.queues, key.broker)) for key in auth.keys]
    for where, grant in asked:
        if grant.broker and not any(grant.holds_at(name, is_first=False) for name in names):
            known = ", ".join(names[:20]) or "none: there is no [[brokers]]"
            yield f"{where}: expected the name of a broker ({known}), got {grant.broker!r}"
