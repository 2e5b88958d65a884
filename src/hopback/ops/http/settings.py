"""The settings file of the service.

It is a TOML file with settings for sign-in, limits, retention, alerts and brokers. It does not
contain secrets. Instead, it names the environment variables that contain them.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta, Struct, field

from hopback.broker.named_brokers import BrokerSettings, broker_names
from hopback.errors import HopbackError
from hopback.mismatches import MismatchFinder
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

_SECRET_BYTES = 32  # minimum bytes of a secret, which is the output size of HMAC-SHA-256

_Days = Annotated[int, Meta(ge=0, le=36_500)]
_Positive = Annotated[int, Meta(ge=1)]
_Text = Annotated[str, Meta(min_length=1, max_length=500)]


class BadSettings(HopbackError):
    """The settings of the service are invalid."""

    remedy: ClassVar[str] = (
        "Correct the named entry. The reference of the HTTP API lists all settings."
    )


class KeySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """An API key. Only its hash is stored."""

    name: _Text
    hash: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
    role: Role
    queues: tuple[_Text, ...] = EVERYTHING
    expires: float | None = None
    broker: str = ""
    """The name of a broker or a pattern. If it is empty, it refers to the first broker."""


class AccessSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Sign-in. If neither tokens nor keys are set, there is none, and the service is only available
    on this machine.
    """

    jwt: JwtSettings | None = None
    oidc: OidcSettings | None = None
    grants: tuple[GrantSettings, ...] = ()
    keys: tuple[KeySettings, ...] = ()
    session_secret_env: str = ""
    session_hours: Annotated[float, Meta(gt=0, le=168)] = 8.0


class RequestLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits for requests. Rates apply to each caller."""

    request_bytes: _Positive = 1024 * 1024
    request_seconds: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """Time to receive a whole request body. If it is exceeded, the status is 408."""
    import_bytes: _Positive = 256 * 1024 * 1024
    import_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 3600.0
    """Time to receive an imported file."""
    requests_per_second: _Positive = 1000
    burst: _Positive = 2000
    sign_ins_per_minute: _Positive = 20
    failures_per_minute: _Positive = 60
    """Wrong credentials from the same address. Above this rate, credentials are not checked and the
    status is 429.
    """
    event_streams: _Positive = 200
    event_streams_per_caller: _Positive = 20
    sessions: _Positive = 20
    sessions_per_caller: _Positive = 5
    held_bytes: _Positive = 256 * 1024 * 1024
    heavy_requests: _Positive = 12
    """Imports, exports, searches, rehearsals and dry runs that run at the same time."""
    heavy_requests_per_caller: _Positive = 4
    heavy_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 3600.0
    """A heavy request is interrupted after this time."""


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Days after which audit entries, finished jobs and files of discarded messages are deleted. 0
    means never.
    """

    audit_days: _Days = AUDIT_DAYS
    job_days: _Days = JOB_DAYS
    export_days: _Days = 0
    """These files are kept by default, because they are the only copies of discarded messages."""


class JobSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for jobs whose process has died."""

    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    """A process is considered dead if it does not renew its lease for this time. All processes with
    the same store must use the same value.
    """
    take_over: bool = False
    """Automatically resume jobs whose process has died."""


class DeadLetterSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Features for callers who are allowed to re-drive messages."""

    editing: bool = False
    """Allow callers to send an edited copy of a dead letter."""
    survey_minutes: Annotated[int, Meta(ge=0, le=1440)] = 0
    """Minutes between automatic surveys of all queues that can be read without risk. With 0,
    surveys are only made on request.
    """


class AdminSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the settings file."""

    auth: AccessSettings = field(default_factory=AccessSettings)
    limits: RequestLimits = field(default_factory=RequestLimits)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    deadletters: DeadLetterSettings = field(default_factory=DeadLetterSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    jobs: JobSettings = field(default_factory=JobSettings)
    brokers: tuple[BrokerSettings, ...] = ()
    """The brokers of the service. Paths without a broker name refer to the first one."""

    @property
    def asks_who(self) -> bool:
        """Whether callers have to sign in."""
        auth = self.auth
        return auth.jwt is not None or auth.oidc is not None or bool(auth.keys)


def read_settings(path: Path, environment: Mapping[str, str]) -> AdminSettings:
    """Read a settings file. Raises BadSettings if an entry is invalid."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSettings(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path}: expected valid TOML: {error}") from error
    return parse_settings(document, environment, str(path))


def parse_settings(
    document: Mapping[str, object], environment: Mapping[str, str], where: str
) -> AdminSettings:
    """Read settings from a parsed document. `where` is its name in error messages."""
    try:
        settings = msgspec.convert(document, AdminSettings)
    except msgspec.ValidationError as error:
        problems = MismatchFinder(shows_values=False).find(AdminSettings, document)
        lines = "; ".join(f"{at}: expected {what}" for at, what in problems)
        raise BadSettings(f"{where}: {lines}") from error
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
    # If the variable is not set, a random secret is used and this is logged.
    secret = environment.get(auth.session_secret_env)
    if secret is not None and len(secret.encode()) < _SECRET_BYTES:
        expected = f"at least {_SECRET_BYTES} bytes in {auth.session_secret_env}"
        yield f"auth.session_secret_env: expected {expected}"
    if (problem := settings.alerts.problem(environment)) is not None:
        yield problem
    # A grant for an unknown broker has no effect, so it must be a mistake.
    names = broker_names(settings.brokers)
    asked = [("auth.grants", each.grant) for each in auth.grants]
    asked += [("auth.keys", Grant(key.role, key.queues, key.broker)) for key in auth.keys]
    for where, grant in asked:
        if grant.broker and not any(grant.holds_at(name, is_first=False) for name in names):
            known = ", ".join(names[:20]) or "none: there is no [[brokers]]"
            yield f"{where}: expected the name of a broker ({known}), got {grant.broker!r}"
