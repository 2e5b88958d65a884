"""What the admin service is told: who may come in, how much they may ask for, which alerts there are.

A TOML file holds it. A secret is never in the file: the file names the environment variable that has
it.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta, Struct, field

from hopback.broker.named_brokers import BrokerSettings, broker_names
from hopback.endpoint import is_loopback
from hopback.errors import HopbackError, InvalidTopology
from hopback.ops.alerts.rules import AlertManners, AlertRule, parse_quiet
from hopback.ops.contract.roles import EVERYTHING, Grant, Role
from hopback.ops.http.keys import is_key_name
from hopback.ops.jobs.journal import AUDIT_DAYS, JOB_DAYS
from hopback.runtime.push import PushTarget

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_ASYMMETRIC = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_SHARED = ("HS256", "HS384", "HS512")
_SECRET_BYTES = 32  # as many as the output of HMAC-SHA-256 has; fewer can be guessed

_Days = Annotated[int, Meta(ge=0, le=36_500)]
_Positive = Annotated[int, Meta(ge=1)]
_Text = Annotated[str, Meta(min_length=1, max_length=500)]


class BadSettings(HopbackError):
    """The settings of the admin service cannot be used."""

    remedy: ClassVar[str] = "Correct the entry named; the how-to of the page shows a whole file."


class JwtSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How bearer tokens are checked; either `jwks_url` or `secret_env`."""

    issuer: _Text
    audience: _Text
    jwks_url: str = ""
    secret_env: str = ""
    algorithms: tuple[str, ...] = ()
    roles_claim: _Text = "roles"
    name_claim: _Text = "preferred_username"
    leeway_seconds: Annotated[int, Meta(ge=0, le=300)] = 30

    @property
    def allowed(self) -> tuple[str, ...]:
        """The algorithms that are accepted; never `none`, never both kinds."""
        return self.algorithms or (("HS256",) if self.secret_env else ("RS256", "ES256"))

    def problem(self) -> str | None:
        """What is wrong, if something is."""
        if bool(self.jwks_url) == bool(self.secret_env):
            return "auth.jwt: expected either jwks_url or secret_env, got " + (
                "both" if self.jwks_url else "neither"
            )
        if self.jwks_url and not is_safe_address(self.jwks_url):
            return f"auth.jwt.jwks_url: expected an https:// address, got {self.jwks_url!r}"
        usable = _SHARED if self.secret_env else _ASYMMETRIC
        wrong = [name for name in self.allowed if name not in usable]
        if wrong:
            return f"auth.jwt.algorithms: expected some of {', '.join(usable)}, got {wrong[0]!r}"
        return None


class OidcSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The provider by which people sign in to the page. `page` is the address under which they open it.

    Without `client_secret_env` it is a public client, protected by PKCE alone. `label` is on the button.
    """

    issuer: _Text
    client_id: _Text
    page: _Text
    client_secret_env: str = ""
    scopes: tuple[_Text, ...] = ("openid", "profile", "email")
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    roles_claim: _Text = "roles"
    name_claim: _Text = "preferred_username"
    label: _Text = "Sign in with your company account"

    def problem(self, environment: Mapping[str, str]) -> str | None:
        """What is wrong, if something is."""
        for name in ("issuer", "page"):
            if not is_safe_address(getattr(self, name)):
                return (
                    f"auth.oidc.{name}: expected an https:// address, got {getattr(self, name)!r}"
                )
        if "openid" not in self.scopes:
            return "auth.oidc.scopes: expected openid among them"
        wrong = [name for name in self.algorithms if name not in _ASYMMETRIC]
        if wrong or not self.algorithms:
            said = repr(wrong[0]) if wrong else "none"
            return f"auth.oidc.algorithms: expected some of {', '.join(_ASYMMETRIC)}, got {said}"
        if self.client_secret_env and not environment.get(self.client_secret_env):
            variable = self.client_secret_env
            return f"auth.oidc.client_secret_env: expected a secret in {variable}, it is not set"
        return None


class GrantSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a role in a token means here."""

    claim: _Text
    role: Role
    queues: tuple[_Text, ...] = EVERYTHING
    broker: str = ""
    """Its name, or a pattern; empty means the first."""

    @property
    def grant(self) -> Grant:
        """The grant that it gives."""
        return Grant(self.role, self.queues, self.broker)


class KeySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """An API key as it is written down: its hash, never the key."""

    name: _Text
    hash: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
    role: Role
    queues: tuple[_Text, ...] = EVERYTHING
    expires: float | None = None
    broker: str = ""
    """Its name, or a pattern; empty means the first."""


class AccessSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may come in. Without tokens and keys nobody is asked, and only this machine is served."""

    jwt: JwtSettings | None = None
    oidc: OidcSettings | None = None
    grants: tuple[GrantSettings, ...] = ()
    keys: tuple[KeySettings, ...] = ()
    session_secret_env: str = ""
    session_hours: Annotated[float, Meta(gt=0, le=168)] = 8.0


class RequestLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """How much may be asked for; each caller has a rate of their own."""

    request_bytes: _Positive = 1024 * 1024
    request_seconds: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """For a whole request body; beyond it 408."""
    import_bytes: _Positive = 256 * 1024 * 1024
    import_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 3600.0
    """For a file that is imported."""
    requests_per_second: _Positive = 1000
    burst: _Positive = 2000
    sign_ins_per_minute: _Positive = 20
    failures_per_minute: _Positive = 60
    """Wrong credentials of one address; beyond them it gets 429 and nothing is checked."""
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
    """How many days the audit, finished jobs and the files of discards are kept; 0 keeps them."""

    audit_days: _Days = AUDIT_DAYS
    job_days: _Days = JOB_DAYS
    export_days: _Days = 0
    """They are the last copy of what was discarded: somebody has to say that they may go."""


class JobSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of a job whose process is gone."""

    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] = 30.0
    """So long after its last sign of life a process counts as gone; all on one store say the same."""
    take_over: bool = False
    """Go on by itself with the jobs of processes that are gone."""


class DeadLetterSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What is switched on for everybody who may re-drive."""

    editing: bool = False
    """Send a changed copy of a dead letter back. Off: what a message says is its producer's business."""
    survey_minutes: Annotated[int, Meta(ge=0, le=1440)] = 0
    """Survey all queues so often, where looking harms nothing; 0 surveys only when somebody asks."""


_ADDRESS = re.compile(
    r"[^\s@<>,;\"]{1,64}@[^\s@<>,;\"]{1,255}"
)  # what can stand in a header as it is
_Port = Annotated[int, Meta(ge=1, le=65_535)]
_Name = Annotated[str, Meta(min_length=1, max_length=100)]


class AlertTargetKind(StrEnum):
    """How somebody is told."""

    WEBHOOK = "webhook"
    """A JSON document, posted."""
    SLACK = "slack"
    """A text, posted as Slack's incoming webhooks take it; Mattermost and others take the same."""
    MAIL = "mail"
    """A mail by SMTP."""


class AlertTargetSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody who is told. Secrets are in environment variables, and so may the address be."""

    name: _Name
    kind: AlertTargetKind
    timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 10.0
    url: str = ""
    url_env: str = ""
    bearer_env: str = ""
    secret_env: str = ""
    host: str = ""
    port: _Port = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password_env: str = ""
    sender: str = ""
    to: tuple[str, ...] = ()

    def push_target(self, environment: Mapping[str, str]) -> PushTarget:
        """Where it is posted to; InvalidTopology if that is no address."""
        return PushTarget(
            environment.get(self.url_env, "") if self.url_env else self.url,
            self.timeout_seconds,
            connections=1,
            bearer=environment.get(self.bearer_env, "") if self.bearer_env else "",
            secret=environment.get(self.secret_env, "") if self.secret_env else "",
        )

    def problems(self, environment: Mapping[str, str]) -> Iterator[str]:
        """What is wrong with it."""
        for name in ("url_env", "bearer_env", "secret_env", "password_env"):
            variable = getattr(self, name)
            if variable and not environment.get(variable):
                yield f"{name}: expected something in {variable}, it is not set"
                return
        if self.kind is AlertTargetKind.MAIL:
            if not self.host:
                yield "host: expected the name of a mail server"
            if not _ADDRESS.fullmatch(self.sender):
                example = "an address such as hopback@example.com"
                yield f"sender: expected {example}, got {self.sender!r}"
            wrong = [each for each in self.to if not _ADDRESS.fullmatch(each)]
            if wrong or not self.to:
                yield f"to: expected one or more addresses, got {wrong[0] if wrong else 'none'!r}"
            if self.password_env and self.security == "none" and not is_loopback(self.host):
                yield "security: expected starttls or tls where there is a password"
            return
        if bool(self.url) == bool(self.url_env):
            yield "expected either url or url_env, got " + ("both" if self.url else "neither")
            return
        try:
            self.push_target(environment)
        except InvalidTopology:  # without the address itself, which may be a secret
            name = "url" if self.url else "url_env"
            yield f"{name}: expected http://host/path or https://host/path, without credentials"


class AlertSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Rules and targets. `link` is the address under which people reach the page."""

    link: str = ""
    every_seconds: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    wait_seconds: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    remind_hours: Annotated[float, Meta(ge=0, le=720)] = 0.0
    time_zone: str = "UTC"
    quiet: tuple[str, ...] = ()
    targets: tuple[AlertTargetSettings, ...] = ()
    rules: tuple[AlertRule, ...] = ()

    @property
    def manners(self) -> AlertManners:
        """How people are told."""
        return AlertManners(
            tuple(target.name for target in self.targets),
            ZoneInfo(self.time_zone),
            self.wait_seconds,
            self.remind_hours * 3600,
            self.quiet,
        )

    def problem(self, environment: Mapping[str, str]) -> str | None:
        """What is wrong first, if something is."""
        return next(self._problems(environment), None)

    def _problems(self, environment: Mapping[str, str]) -> Iterator[str]:
        if self.link and not re.fullmatch(r"https?://[^\s?#]+", self.link):
            yield f"alerts.link: expected https://host/, got {self.link!r}"
        try:
            ZoneInfo(self.time_zone)
        except (ValueError, OSError, KeyError):
            yield f"alerts.time_zone: expected a name such as Europe/Berlin, got {self.time_zone!r}"
        names = [target.name for target in self.targets]
        for where, each in (("targets", names), ("rules", [rule.name for rule in self.rules])):
            twice = [name for name, count in Counter(each).items() if count > 1]
            if twice:
                yield f"alerts.{where}: expected each name once, got {twice[0]!r} twice"
        for target in self.targets:
            yield from (
                f"alerts.targets {target.name!r}: {what}" for what in target.problems(environment)
            )
        if self.rules and not self.targets:
            yield "alerts.rules: expected somebody to tell (alerts.targets), got nobody"
        yield from _quiet_problems("alerts.quiet", self.quiet)
        for rule in self.rules:
            where = f"alerts.rules {rule.name!r}"
            unknown = [name for name in rule.targets if name not in names]
            if unknown:
                yield f"{where}: expected targets of alerts.targets, got {unknown[0]!r}"
            yield from _quiet_problems(f"{where}: quiet", rule.quiet or ())


def _quiet_problems(where: str, times: tuple[str, ...]) -> Iterator[str]:
    for text in times:
        try:
            parse_quiet(text)
        except ValueError as error:
            yield f"{where}: {error}"


class AdminSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the service is told."""

    auth: AccessSettings = field(default_factory=AccessSettings)
    limits: RequestLimits = field(default_factory=RequestLimits)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    deadletters: DeadLetterSettings = field(default_factory=DeadLetterSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    jobs: JobSettings = field(default_factory=JobSettings)
    brokers: tuple[BrokerSettings, ...] = ()
    """The brokers that are served, the first of them under the paths without a name."""

    @property
    def asks_who(self) -> bool:
        """Whether anybody is asked who they are."""
        auth = self.auth
        return auth.jwt is not None or auth.oidc is not None or bool(auth.keys)


def read_settings(path: Path, environment: Mapping[str, str]) -> AdminSettings:
    """The settings in a file; BadSettings names the entry that is wrong."""
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
    """The settings in a document; `where` says where it is from."""
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
            expected = "names of 1 to 100 characters that can be printed"
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
    # A variable that is not set is no problem: a random secret is used, and the log says so.
    secret = environment.get(auth.session_secret_env)
    if secret is not None and len(secret.encode()) < _SECRET_BYTES:
        expected = f"at least {_SECRET_BYTES} bytes in {auth.session_secret_env}"
        yield f"auth.session_secret_env: expected {expected}"
    if (problem := settings.alerts.problem(environment)) is not None:
        yield problem
    # A grant for a broker that is not there gives nothing, which nobody wants to say.
    names = broker_names(settings.brokers)
    asked = [("auth.grants", each.grant) for each in auth.grants]
    asked += [("auth.keys", Grant(key.role, key.queues, key.broker)) for key in auth.keys]
    for where, grant in asked:
        if grant.broker and not any(grant.holds_at(name, is_first=False) for name in names):
            known = ", ".join(names[:20]) or "none: there is no [[brokers]]"
            yield f"{where}: expected the name of a broker ({known}), got {grant.broker!r}"


def is_safe_address(url: str) -> bool:
    """HTTPS anywhere; plain HTTP on a loopback address, which nobody else can answer for."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return bool(host)
        return parts.scheme == "http" and ipaddress.ip_address(host).is_loopback
    except ValueError:  # no address at all, or a name where an address is expected
        return False
