"""The asyncio transport of a connection.

Output that is queued in the same iteration of the event loop is written together. Use `hurry` to write
immediately.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Protocol

from hopback.errors import BrokerError, ConnectionFailed, ConnectionLost, ProtocolError
from hopback.wire.events import Event, Violation

if TYPE_CHECKING:
    from hopback.wire.connection import WireConnection
    from hopback.wire.url import TlsOptions


class Heartbeat:
    """The heartbeat of a connection. An interval of 0 disables it.

    The peer is considered dead after two intervals without data. A heartbeat is sent after half an
    interval without output.
    """

    __slots__ = ("_interval", "_received_at", "_sent_at")

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._received_at = now
        self._sent_at = now

    @property
    def tick(self) -> float | None:
        """The interval between checks in seconds, or None if heartbeats are disabled."""
        return self._interval / 4 if self._interval else None

    def mark_received(self, now: float) -> None:
        self._received_at = now

    def sent(self, now: float) -> None:
        self._sent_at = now

    def due(self, now: float) -> bool:
        """Return True if a heartbeat must be sent."""
        return bool(self._interval) and now - self._sent_at >= self._interval / 2

    def dead(self, now: float) -> bool:
        """Return True if the peer has not sent anything for too long."""
        return bool(self._interval) and now - self._received_at > 2 * self._interval


_RECEIVED_AT_ONCE = 256 * 1024
"""Size of the receive buffer in bytes, the same as in asyncio. It is allocated once, while
asyncio's streams allocate it for every read.
"""
_LINGER = 5.0
"""Maximum time to write pending output when a connection is closed, in seconds."""


class Owner(Protocol):
    """Callbacks of a wire. They must not raise exceptions or block."""

    def on_event(self, event: Event) -> None:
        """Called for each event."""

    def on_writable(self) -> None:
        """Called when the connection is writable again."""

    def on_lost(self, error: BrokerError | None) -> None:
        """Called once when the connection has ended.

        `error` is None if it was closed by this side.
        """


class Wire(asyncio.BufferedProtocol):
    def __init__(self, connection: WireConnection, owner: Owner) -> None:
        self.connection = connection
        self.writable: bool = True
        self.last_publisher: object = None
        """The channel that last published a message."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(_RECEIVED_AT_ONCE))
        self._reading = False
        self._flush_due = False
        self._error: BrokerError | None = None
        self._closing = False
        self._has_received = False
        self._has_sent = False
        self._is_reading_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the socket is connected."""
        self._transport = transport  # type: ignore[assignment]
        self.flush()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the buffer for received bytes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Process received bytes and write the replies."""
        self._has_received = True
        self._reading = True
        on_event = self._owner.on_event
        connection = self.connection
        try:
            while True:
                for event in connection.receive(data):
                    if isinstance(event, Violation):
                        self.fail(event.error)
                    else:
                        on_event(event)
                # If reading was paused, `resume_reading` continues here.
                if self._is_reading_paused or not connection.unread:
                    break
                data = b""
        except ProtocolError as error:
            self.fail(error)
        finally:
            self._reading = False
            self.flush()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        """Called by asyncio when the socket is writable again."""
        self.writable = True
        self._owner.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        self._transport = None
        error = self._error
        if error is None and not self._closing:
            why = str(exc) if exc else "the broker closed it"
            error = ConnectionLost(f"connection lost: {why}")
            error.__cause__ = exc
        self._owner.on_lost(error)

    def wake(self) -> None:
        """Schedule a write at the end of this iteration of the event loop."""
        if not self._flush_due and not self._reading:
            self._flush_due = True
            self._loop.call_soon(self._flush_as_due)

    def hurry(self) -> None:
        """Write immediately, unless a write is already scheduled.

        This is used if the caller is waiting for a reply.
        """
        if not self._flush_due and not self._reading:
            self.flush()

    def _flush_as_due(self) -> None:
        # Only the scheduled call may reset the flag. Otherwise, each iteration would add another
        # write.
        self._flush_due = False
        self.flush()

    def flush(self) -> None:
        """Write pending output."""
        data = self.connection.take()
        if data and self._transport is not None:
            self._has_sent = True
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Pause reading. Missing heartbeats are ignored in the meantime."""
        if self._transport is not None and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and self._is_reading_paused:
            self._is_reading_paused = False
            self._has_received = True
            self._transport.resume_reading()
            if self.connection.unread:
                self.data_received(b"")

    def fail(self, error: BrokerError) -> None:
        """Close the connection with an error after writing pending output."""
        self._error = self._error or error
        self.close()

    def close(self) -> None:
        """Close the connection after writing pending output."""
        self._closing = True
        if self._transport is not None:
            self.flush()
            self._transport.close()
            if self._linger is None:
                self._linger = self._loop.call_later(_LINGER, self.abort)

    def await_end(self, seconds: float) -> None:
        """Wait until the peer closes the connection. After the timeout it is aborted.

        If this side closed the connection first, the peer could get an error while writing.
        """
        self._closing = True
        self.flush()
        for timer in (self._timer, self._linger):
            if timer is not None:
                timer.cancel()
        self._linger = self._loop.call_later(seconds, self.abort)

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def start_heartbeat(self, interval: float) -> None:
        """Start sending and expecting heartbeats."""
        heartbeat = Heartbeat(interval, self._loop.time())
        if heartbeat.tick is not None:
            self._timer = self._loop.call_later(heartbeat.tick, self._beat, heartbeat)

    def _beat(self, heartbeat: Heartbeat) -> None:
        now = self._loop.time()
        if self._has_received or self._is_reading_paused:
            heartbeat.mark_received(now)
        if self._has_sent:
            heartbeat.sent(now)
        self._has_received = self._has_sent = False
        if heartbeat.dead(now):
            self.fail(ConnectionLost("connection lost: the broker sent no heartbeat in time"))
            self.abort()
            return
        if heartbeat.due(now):
            self.connection.heartbeat()
            self.flush()
        self._timer = self._loop.call_later(heartbeat.tick or 0, self._beat, heartbeat)


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """Create the TLS context of a client. Requires TLS 1.2 or later."""
    try:
        context = ssl.create_default_context(cafile=options.cacertfile)
        if options.certfile is not None:
            context.load_cert_chain(options.certfile, options.keyfile)
    except OSError as problem:
        files = (options.cacertfile, options.certfile, options.keyfile)
        named = ", ".join(file for file in files if file)
        raise ConnectionFailed(f"expected PEM files for TLS in {named}: {problem}") from problem
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif options.server_name == "":
        context.check_hostname = False
    return context
