"""The states of connections and channels as data, the same table for both roles.

A row says: in this state, when this side sends this method, that state follows. What is not in
the table is a protocol error, whoever sends it. Once a side has asked to close, whatever the other
side still sends is ignored until it answers.
"""

from __future__ import annotations

from enum import StrEnum

from hopback.wire.methods import Side

__all__ = ["CHANNEL", "CONNECTION", "ChannelState", "ConnectionState"]


class ConnectionState(StrEnum):
    """Where a connection stands: what has to come next, or who wants to end it."""

    AWAIT_HEADER = "await-header"
    AWAIT_START = "await-start"
    AWAIT_START_OK = "await-start-ok"
    AWAIT_TUNE = "await-tune"
    AWAIT_SECURE_OK = "await-secure-ok"
    AWAIT_TUNE_OK = "await-tune-ok"
    AWAIT_OPEN = "await-open"
    AWAIT_OPEN_OK = "await-open-ok"
    OPEN = "open"
    CLIENT_CLOSING = "client-closing"
    SERVER_CLOSING = "server-closing"
    CLOSED = "closed"


class ChannelState(StrEnum):
    """Where a channel stands."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    CLIENT_CLOSING = "client-closing"
    SERVER_CLOSING = "server-closing"


_C, _S = Side.CLIENT, Side.SERVER
_L = ConnectionState
_H = ChannelState

CONNECTION: dict[tuple[ConnectionState, Side, str], ConnectionState] = {
    (_L.AWAIT_START, _S, "connection.start"): _L.AWAIT_START_OK,
    (_L.AWAIT_START_OK, _C, "connection.start-ok"): _L.AWAIT_TUNE,
    (_L.AWAIT_TUNE, _S, "connection.secure"): _L.AWAIT_SECURE_OK,
    (_L.AWAIT_SECURE_OK, _C, "connection.secure-ok"): _L.AWAIT_TUNE,
    (_L.AWAIT_TUNE, _S, "connection.tune"): _L.AWAIT_TUNE_OK,
    (_L.AWAIT_TUNE_OK, _C, "connection.tune-ok"): _L.AWAIT_OPEN,
    (_L.AWAIT_OPEN, _C, "connection.open"): _L.AWAIT_OPEN_OK,
    (_L.AWAIT_OPEN_OK, _S, "connection.open-ok"): _L.OPEN,
    (_L.OPEN, _S, "connection.blocked"): _L.OPEN,
    (_L.OPEN, _S, "connection.unblocked"): _L.OPEN,
    (_L.OPEN, _C, "connection.update-secret"): _L.OPEN,
    (_L.OPEN, _S, "connection.update-secret-ok"): _L.OPEN,
    # Both may ask to close at once: each answers the other and waits for its own answer.
    (_L.CLIENT_CLOSING, _S, "connection.close-ok"): _L.CLOSED,
    (_L.CLIENT_CLOSING, _S, "connection.close"): _L.CLIENT_CLOSING,
    (_L.CLIENT_CLOSING, _C, "connection.close-ok"): _L.CLIENT_CLOSING,
    (_L.SERVER_CLOSING, _C, "connection.close-ok"): _L.CLOSED,
    (_L.SERVER_CLOSING, _C, "connection.close"): _L.SERVER_CLOSING,
    (_L.SERVER_CLOSING, _S, "connection.close-ok"): _L.SERVER_CLOSING,
}
for _state in (
    _L.AWAIT_START_OK,
    _L.AWAIT_TUNE,
    _L.AWAIT_SECURE_OK,
    _L.AWAIT_TUNE_OK,
    _L.AWAIT_OPEN,
    _L.AWAIT_OPEN_OK,
    _L.OPEN,
):
    CONNECTION[_state, _C, "connection.close"] = _L.CLIENT_CLOSING
    CONNECTION[_state, _S, "connection.close"] = _L.SERVER_CLOSING

CHANNEL: dict[tuple[ChannelState, Side, str], ChannelState] = {
    (_H.CLOSED, _C, "channel.open"): _H.OPENING,
    (_H.OPENING, _S, "channel.open-ok"): _H.OPEN,
    (_H.OPENING, _S, "channel.close"): _H.SERVER_CLOSING,
    (_H.OPEN, _C, "channel.close"): _H.CLIENT_CLOSING,
    (_H.OPEN, _S, "channel.close"): _H.SERVER_CLOSING,
    (_H.CLIENT_CLOSING, _S, "channel.close-ok"): _H.CLOSED,
    (_H.CLIENT_CLOSING, _S, "channel.close"): _H.CLIENT_CLOSING,
    (_H.CLIENT_CLOSING, _C, "channel.close-ok"): _H.CLIENT_CLOSING,
    (_H.SERVER_CLOSING, _C, "channel.close-ok"): _H.CLOSED,
    (_H.SERVER_CLOSING, _C, "channel.close"): _H.SERVER_CLOSING,
    (_H.SERVER_CLOSING, _S, "channel.close-ok"): _H.SERVER_CLOSING,
}
