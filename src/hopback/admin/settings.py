"""What the admin service is told: who may come in, and how much they may ask for.

A TOML file holds it. A secret is never in the file: the file names the environment variable that has
it.
"""

from __future__ import annotations

import ipaddress
import tomllib
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from hopback.admin.keys import is_key_name
from hopback.admin.roles import EVERYTHING, Grant, Role
from hopback.deadletters.journal import AUDIT_DAYS, JOB_DAYS
from hopback.errors import HopbackError
from hopback.renamed import old_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "AccessSettings",
    "AdminSettings",
    "BadSettings",
    "DeadLetterSettings",
    "GrantSettings",
    "JwtSettings",
    "KeySettings",
    "RequestLimits",
    "RetentionSettings",
    "parse_settings",
    "read_settings",
]

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
        if self.jwks_url and not _is_safe_address(self.jwks_url):
            return f"auth.jwt.jwks_url: expected an https:// address, got {self.jwks_url!r}"
        usable = _SHARED if self.secret_env else _ASYMMETRIC
        wrong = [name for name in self.allowed if name not in usable]
        if wrong:
            return f"auth.jwt.algorithms: expected some of {', '.join(usable)}, got {wrong[0]!r}"
        return None


class GrantSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What a role in a token means here."""

    claim: _Text
    role: Role
    queues: tuple[_Text, ...] = EVERYTHING

    @property
    def grant(self) -> Grant:
        """The grant that it gives."""
        return Grant(self.role, self.queues)


class KeySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """An API key as it is written down: its hash, never the key."""

    name: _Text
    hash: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
    role: Role
    queues: tuple[_Text, ...] = EVERYTHING
    expires: float | None = None


class AccessSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Who may come in. Without tokens and keys nobody is asked, and only this machine is served."""

    jwt: JwtSettings | None = None
    grants: tuple[GrantSettings, ...] = ()
    keys: tuple[KeySettings, ...] = ()
    session_secret_env: str = ""
    session_hours: Annotated[float, Meta(gt=0, le=168)] = 8.0


class RequestLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """How much may be asked for; each caller has a rate of their own."""

    request_bytes: _Positive = 1024 * 1024
    request_seconds: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """For a whole request body; beyond it 408."""
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


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How many days the audit and finished jobs are kept; 0 keeps them."""

    audit_days: _Days = AUDIT_DAYS
    job_days: _Days = JOB_DAYS


class DeadLetterSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What is switched on for everybody who may re-drive."""

    editing: bool = False
    """Send a changed copy of a dead letter back. Off: what a message says is its producer's business."""


class AdminSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that the service is told."""

    auth: AccessSettings = field(default_factory=AccessSettings)
    limits: RequestLimits = field(default_factory=RequestLimits)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    deadletters: DeadLetterSettings = field(default_factory=DeadLetterSettings)

    @property
    def asks_who(self) -> bool:
        """Whether anybody is asked who they are."""
        return self.auth.jwt is not None or bool(self.auth.keys)


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
    jwt = settings.auth.jwt
    problem = None if jwt is None else jwt.problem() or _secret_problem(jwt, environment)
    unseen = next((key for key in settings.auth.keys if not is_key_name(key.name)), None)
    if unseen is not None:
        problem = f"auth.keys: expected names of 1 to 100 characters that can be printed, got {unseen.name!r}"
    problem = problem or _session_secret_problem(settings.auth.session_secret_env, environment)
    if problem is not None:
        raise BadSettings(f"{where}: {problem}")
    return settings


def _is_safe_address(url: str) -> bool:
    """HTTPS anywhere; plain HTTP on a loopback address, which nobody else can answer for."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return bool(host)
        return parts.scheme == "http" and ipaddress.ip_address(host).is_loopback
    except ValueError:  # no address at all, or a name where an address is expected
        return False


def _session_secret_problem(name: str, environment: Mapping[str, str]) -> str | None:
    """A variable that is not set is no problem: a random secret is used, and the log says so."""
    secret = environment.get(name)
    if secret is None or len(secret.encode()) >= _SECRET_BYTES:
        return None
    return f"auth.session_secret_env: expected at least {_SECRET_BYTES} bytes in {name}"


def _secret_problem(jwt: JwtSettings, environment: Mapping[str, str]) -> str | None:
    if not jwt.secret_env:
        return None
    secret = environment.get(jwt.secret_env)
    if secret is None:
        return f"auth.jwt.secret_env: expected a secret in {jwt.secret_env}, it is not set"
    if len(secret.encode()) < _SECRET_BYTES:
        return f"auth.jwt.secret_env: expected at least {_SECRET_BYTES} bytes in {jwt.secret_env}"
    return None


__getattr__ = old_names(
    __name__,
    {"Limits": (RequestLimits, "hopback.admin.settings.RequestLimits")},
)
