"""The settings for alerts, which are rules, targets and quiet times."""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal
from zoneinfo import ZoneInfo

from msgspec import Meta, Struct

from hopback.endpoint import is_loopback
from hopback.errors import InvalidDeclaration
from hopback.ops.alerts.quiet import parse_quiet
from hopback.ops.alerts.values import AlertRule  # noqa: TC001  msgspec reads it at run time
from hopback.runtime.push import PushTarget

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ADDRESS = re.compile(r"[^\s@<>,;\"]{1,64}@[^\s@<>,;\"]{1,255}")  # safe in a mail header
_Port = Annotated[int, Meta(ge=1, le=65_535)]
_Name = Annotated[str, Meta(min_length=1, max_length=100)]


class AlertTargetKind(StrEnum):
    """How a target is notified."""

    WEBHOOK = "webhook"
    """Send a JSON document with POST."""
    SLACK = "slack"
    """Send a text to an incoming webhook of Slack, Mattermost or a compatible chat."""
    MAIL = "mail"
    """Send a mail with SMTP."""


class AlertTargetSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A target for notices. Its secrets are in environment variables, and its address can be too."""

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
        """Return the address of a webhook or chat. Raises InvalidDeclaration if it is invalid."""
        return PushTarget(
            environment.get(self.url_env, "") if self.url_env else self.url,
            self.timeout_seconds,
            connections=1,
            bearer=environment.get(self.bearer_env, "") if self.bearer_env else "",
            secret=environment.get(self.secret_env, "") if self.secret_env else "",
        )

    def problems(self, environment: Mapping[str, str]) -> Iterator[str]:
        """Yield the problems in this target."""
        for name in ("url_env", "bearer_env", "secret_env", "password_env"):
            variable = getattr(self, name)
            if variable and not environment.get(variable):
                yield f"{name}: expected a value in {variable}, it is not set"
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
        except InvalidDeclaration:  # do not show the address, which may be a secret
            name = "url" if self.url else "url_env"
            yield f"{name}: expected http://host/path or https://host/path, without credentials"


class AlertSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Rules and targets. `link` is the public address of the page, which is used for links in notices."""

    link: str = ""
    every_seconds: Annotated[float, Meta(ge=1, le=3600)] = 15.0
    wait_seconds: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    remind_hours: Annotated[float, Meta(ge=0, le=720)] = 0.0
    time_zone: str = "UTC"
    quiet: tuple[str, ...] = ()
    targets: tuple[AlertTargetSettings, ...] = ()
    rules: tuple[AlertRule, ...] = ()

    def problem(self, environment: Mapping[str, str]) -> str | None:
        """Return the first problem in these settings, or None."""
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
            yield "alerts.rules: expected at least one target (alerts.targets), got none"
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
