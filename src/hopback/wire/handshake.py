"""The connection handshake."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hopback import __version__
from hopback.errors import ConnectionFailed, LoginRefused, ProtocolError
from hopback.wire.events import Event, HeaderReceived, MethodReceived, Violation
from hopback.wire.frames import MIN_FRAME, ConnectionState

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.wire.connection import WireConnection


Secret: TypeAlias = Callable[[], str]
"""A function that returns the password. It is called for each connection, so the password can be
rotated.
"""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a user. `mechanism` is PLAIN or EXTERNAL (TLS certificate)."""

    user: str = "guest"
    secret: Secret = field(default=lambda: "guest", repr=False, compare=False)
    mechanism: str = "PLAIN"

    def response(self) -> bytes:
        """Return the SASL response. It may contain the password and must not be stored."""
        if self.mechanism == "EXTERNAL":
            return self.user.encode()
        return b"\0%b\0%b" % (self.user.encode(), self.secret().encode())


def secret_from_file(path: str) -> Secret:
    """Return a function that reads the password from a file."""

    def read() -> str:
        try:
            return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as problem:
            reason = getattr(problem, "strerror", None) or "not UTF-8 text"
            raise ConnectionFailed(f"expected the password in {path}: {reason}") from None

    return read


def secret_from_environment(name: str) -> Secret:
    """Return a function that reads the password from an environment variable."""

    def read() -> str:
        found = os.environ.get(name)
        if found is None:
            raise ConnectionFailed(f"expected the password in ${name}, which is not set")
        return found

    return read


CLIENT_CAPABILITIES: Headers = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


@dataclass(frozen=True, slots=True)
class Tuning:
    """Proposed or negotiated limits. 0 means no limit, or no heartbeat."""

    channel_max: int = 2047
    frame_max: int = 131_072
    heartbeat: int = 60

    def agree(self, channel_max: int, frame_max: int, heartbeat: int) -> Tuning:
        """Return the negotiated limits.

        The lower value is used. A heartbeat of 0 on either side disables heartbeats.
        """
        return Tuning(
            _lower(self.channel_max, channel_max) or 65_535,
            _lower(self.frame_max, frame_max) or 131_072,
            min(self.heartbeat, heartbeat),
        )


def _lower(ours: int, theirs: int) -> int:
    return min(ours, theirs) if ours and theirs else max(ours, theirs)


class ClientHandshake:
    """The client side of the handshake.

    `done` is True when the connection is open.
    """

    def __init__(
        self,
        connection: WireConnection,
        credentials: Credentials,
        *,
        virtual_host: str = "/",
        tuning: Tuning | None = None,
        name: str = "hopback",
    ) -> None:
        self._connection = connection
        self._credentials = credentials
        self._virtual_host = virtual_host
        self._name = name
        self.tuning: Tuning = tuning or Tuning()
        self.server_properties: dict[str, Any] = {}
        self.done: bool = False

    def on_event(self, event: Event) -> None:
        """Handle an event. Raises ConnectionFailed if the broker refuses the connection."""
        if isinstance(event, Violation):
            raise ConnectionFailed(f"handshake failed: {event.error}") from event.error
        if not isinstance(event, MethodReceived):
            raise ProtocolError(f"expected a method of the handshake, got {event!r}")
        arguments = event.arguments
        match event.name:
            case "connection.start":
                self._on_start(arguments)
            case "connection.tune":
                self._on_tune(arguments)
            case "connection.open-ok":
                self.done = True
            case "connection.close":
                lasts = arguments["reply_code"] == 403 or _LASTS.fullmatch(arguments["reply_text"])
                refused = LoginRefused if lasts else ConnectionFailed
                who = f"user {self._credentials.user!r}, virtual host {self._virtual_host!r}"
                raise refused(
                    f"refused by the broker: {arguments['reply_code']} {arguments['reply_text']} ({who})"
                )
            case _:
                raise ConnectionFailed(f"expected a method of the handshake, got {event.name}")

    def _on_start(self, arguments: dict[str, Any]) -> None:
        mechanisms = arguments["mechanisms"].decode("ascii", "replace").split()
        wanted = self._credentials.mechanism
        if wanted not in mechanisms:
            offered = " ".join(mechanisms)
            raise ConnectionFailed(f"expected the broker to offer {wanted}, it offers {offered}")
        self.server_properties = arguments["server_properties"]
        self._connection.send(
            0,
            "connection.start-ok",
            client_properties={
                "product": "Hopback",
                "version": __version__,
                "platform": "Python",
                "connection_name": self._name,
                "capabilities": CLIENT_CAPABILITIES,
            },
            mechanism=wanted,
            response=self._credentials.response(),
            locale="en_US",
        )

    def _on_tune(self, arguments: dict[str, Any]) -> None:
        self.tuning = agreed = self.tuning.agree(**arguments)
        if agreed.frame_max < MIN_FRAME:
            raise ConnectionFailed(f"expected a frame_max of 4096 or more, got {agreed.frame_max}")
        self._connection.send(
            0,
            "connection.tune-ok",
            channel_max=agreed.channel_max,
            frame_max=agreed.frame_max,
            heartbeat=agreed.heartbeat,
        )
        self._connection.tune(frame_max=agreed.frame_max, channel_max=agreed.channel_max)
        self._connection.send(0, "connection.open", virtual_host=self._virtual_host)


_LASTS = re.compile(
    r"NOT_ALLOWED - (vhost .* not found|access to vhost '.*' refused for user '.*')", re.DOTALL
)
"""Errors that are permanent: the virtual host does not exist, or access was refused. Other errors
are temporary, such as "vhost '…' is down" or "connection limit (…) is reached".
"""

Authenticate: TypeAlias = Callable[[str, bytes], str | None]
"""A function that returns the name of the user, or None to refuse the login."""


class ServerHandshake:
    """The server side of the handshake."""

    def __init__(
        self,
        connection: WireConnection,
        authenticate: Authenticate,
        *,
        virtual_hosts: Callable[[str], bool] = lambda name: name == "/",
        admits: Callable[[str, str], bool] = lambda _user, _virtual_host: True,
        tuning: Tuning | None = None,
        properties: Headers | None = None,
        mechanisms: str = "PLAIN",
    ) -> None:
        self._connection = connection
        self._authenticate = authenticate
        self._virtual_hosts = virtual_hosts
        self._admits = admits
        self._properties = properties or {}
        self._mechanisms = mechanisms
        self.tuning: Tuning = tuning or Tuning()
        self.user: str = ""
        self.virtual_host: str = ""
        self.client_properties: dict[str, Any] = {}
        self.mechanism: str = ""
        """The mechanism used by the client."""

    @property
    def done(self) -> bool:
        return self._connection.state is ConnectionState.OPEN

    def on_event(self, event: Event) -> None:
        """Handle an event. If the client is refused, connection.close is sent."""
        if isinstance(event, HeaderReceived):
            self._connection.send(
                0,
                "connection.start",
                version_major=0,
                version_minor=9,
                server_properties=self._properties,
                mechanisms=self._mechanisms,
                locales="en_US",
            )
        elif isinstance(event, MethodReceived):
            match event.name:
                case "connection.start-ok":
                    self._on_start_ok(event.arguments)
                case "connection.tune-ok":
                    self._on_tune_ok(event.arguments)
                case "connection.open":
                    self._on_open(event.arguments["virtual_host"])
                case _:
                    pass

    def _refuse(self, code: int, text: str) -> None:
        said = text.encode("utf-8", "replace")[:255].decode("utf-8", "ignore")
        self._connection.send(0, "connection.close", reply_code=code, reply_text=said)

    def _on_start_ok(self, arguments: dict[str, Any]) -> None:
        self.client_properties = arguments["client_properties"]
        self.mechanism = arguments["mechanism"]
        mechanism = arguments["mechanism"]
        user = None
        if mechanism in self._mechanisms.split():
            user = self._authenticate(mechanism, arguments["response"])
        if user is None:
            self._refuse(
                403,
                "ACCESS_REFUSED - Login was refused using authentication mechanism"
                f" {mechanism}. For details see the broker logfile.",
            )
            return
        self.user = user
        self._connection.send(
            0,
            "connection.tune",
            channel_max=self.tuning.channel_max,
            frame_max=self.tuning.frame_max,
            heartbeat=self.tuning.heartbeat,
        )

    def _on_tune_ok(self, arguments: dict[str, Any]) -> None:
        ours = self.tuning
        channel_max = arguments["channel_max"] or ours.channel_max
        frame_max = arguments["frame_max"] or ours.frame_max
        problem = _beyond("channel_max", channel_max, 1, ours.channel_max)
        problem = problem or _beyond("frame_max", frame_max, MIN_FRAME, ours.frame_max)
        if problem:
            self._refuse(530, f"NOT_ALLOWED - {problem}")
            return
        self.tuning = Tuning(channel_max, frame_max, arguments["heartbeat"])
        self._connection.tune(frame_max=frame_max, channel_max=channel_max)

    def _on_open(self, virtual_host: str) -> None:
        if not self._virtual_hosts(virtual_host):
            self._refuse(530, f"NOT_ALLOWED - vhost {virtual_host} not found")
            return
        if not self._admits(self.user, virtual_host):
            self._refuse(
                530,
                f"NOT_ALLOWED - access to vhost '{virtual_host}' refused for user '{self.user}'",
            )
            return
        self.virtual_host = virtual_host
        self._connection.send(0, "connection.open-ok")


def _beyond(name: str, value: int, low: int, high: int) -> str:
    """Return RabbitMQ's error message for an invalid value, or an empty string."""
    if value > high:
        return f"negotiated {name} = {value} is higher than the maximum allowed value ({high})"
    if value < low:
        return f"negotiated {name} = {value} is lower than the minimum allowed value ({low})"
    return ""
