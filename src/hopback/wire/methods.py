"""The methods of AMQP 0-9-1.

Each method is defined in one line: name, class id and method id, sender (C for client, S for
server, * for both), names of replies, `content` if it has content, and its arguments. `_` is a
reserved argument. Methods that are used frequently, such as basic.deliver, are encoded elsewhere.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hopback.errors import ProtocolError
from hopback.wire.tables import decode_table, encode_table

if TYPE_CHECKING:
    from collections.abc import Mapping


class Side(StrEnum):
    """The two sides of a connection."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def other(self) -> Side:
        return Side.SERVER if self is Side.CLIENT else Side.CLIENT


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """The definition of a method."""

    name: str
    id: int
    senders: frozenset[Side]
    arguments: tuple[tuple[str, str], ...]
    replies: tuple[str, ...] = ()
    content: bool = False
    is_reply: bool = False

    def awaits_reply(self, arguments: Mapping[str, object]) -> bool:
        """Return True if the peer must reply, i.e. the method has replies and `nowait` is not set."""
        return bool(self.replies) and not arguments.get("nowait", False)


_TABLE = """
connection.start            10.10 S  >connection.start-ok version_major:octet version_minor:octet server_properties:table mechanisms:longstr locales:longstr
connection.start-ok         10.11 C  client_properties:table mechanism:shortstr response:longstr locale:shortstr
connection.secure           10.20 S  >connection.secure-ok challenge:longstr
connection.secure-ok        10.21 C  response:longstr
connection.tune             10.30 S  >connection.tune-ok channel_max:short frame_max:long heartbeat:short
connection.tune-ok          10.31 C  channel_max:short frame_max:long heartbeat:short
connection.open             10.40 C  >connection.open-ok virtual_host:shortstr _:shortstr _:bit
connection.open-ok          10.41 S  _:shortstr
connection.close            10.50 *  >connection.close-ok reply_code:short reply_text:shortstr class_id:short method_id:short
connection.close-ok         10.51 *
connection.blocked          10.60 S  reason:shortstr
connection.unblocked        10.61 S
connection.update-secret    10.70 C  >connection.update-secret-ok new_secret:longstr reason:shortstr
connection.update-secret-ok 10.71 S
channel.open                20.10 C  >channel.open-ok _:shortstr
channel.open-ok             20.11 S  _:longstr
channel.flow                20.20 *  >channel.flow-ok active:bit
channel.flow-ok             20.21 *  active:bit
channel.close               20.40 *  >channel.close-ok reply_code:short reply_text:shortstr class_id:short method_id:short
channel.close-ok            20.41 *
exchange.declare            40.10 C  >exchange.declare-ok _:short exchange:shortstr type:shortstr passive:bit durable:bit auto_delete:bit internal:bit nowait:bit arguments:table
exchange.declare-ok         40.11 S
exchange.delete             40.20 C  >exchange.delete-ok _:short exchange:shortstr if_unused:bit nowait:bit
exchange.delete-ok          40.21 S
exchange.bind               40.30 C  >exchange.bind-ok _:short destination:shortstr source:shortstr routing_key:shortstr nowait:bit arguments:table
exchange.bind-ok            40.31 S
exchange.unbind             40.40 C  >exchange.unbind-ok _:short destination:shortstr source:shortstr routing_key:shortstr nowait:bit arguments:table
exchange.unbind-ok          40.51 S
queue.declare               50.10 C  >queue.declare-ok _:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit nowait:bit arguments:table
queue.declare-ok            50.11 S  queue:shortstr message_count:long consumer_count:long
queue.bind                  50.20 C  >queue.bind-ok _:short queue:shortstr exchange:shortstr routing_key:shortstr nowait:bit arguments:table
queue.bind-ok               50.21 S
queue.purge                 50.30 C  >queue.purge-ok _:short queue:shortstr nowait:bit
queue.purge-ok              50.31 S  message_count:long
queue.delete                50.40 C  >queue.delete-ok _:short queue:shortstr if_unused:bit if_empty:bit nowait:bit
queue.delete-ok             50.41 S  message_count:long
queue.unbind                50.50 C  >queue.unbind-ok _:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table
queue.unbind-ok             50.51 S
basic.qos                   60.10 C  >basic.qos-ok prefetch_size:long prefetch_count:short global_:bit
basic.qos-ok                60.11 S
basic.consume               60.20 C  >basic.consume-ok _:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit exclusive:bit nowait:bit arguments:table
basic.consume-ok            60.21 S  consumer_tag:shortstr
basic.cancel                60.30 *  >basic.cancel-ok consumer_tag:shortstr nowait:bit
basic.cancel-ok             60.31 *  consumer_tag:shortstr
basic.publish               60.40 C  content _:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit
basic.return                60.50 S  content reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr
basic.deliver               60.60 S  content consumer_tag:shortstr delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr
basic.get                   60.70 C  >basic.get-ok|basic.get-empty _:short queue:shortstr no_ack:bit
basic.get-ok                60.71 S  content delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr message_count:long
basic.get-empty             60.72 S  _:shortstr
basic.ack                   60.80 *  delivery_tag:longlong multiple:bit
basic.reject                60.90 C  delivery_tag:longlong requeue:bit
basic.recover-async         60.100 C requeue:bit
basic.recover               60.110 C >basic.recover-ok requeue:bit
basic.recover-ok            60.111 S
basic.nack                  60.120 * delivery_tag:longlong multiple:bit requeue:bit
confirm.select              85.10 C  >confirm.select-ok nowait:bit
confirm.select-ok           85.11 S
tx.select                   90.10 C  >tx.select-ok
tx.select-ok                90.11 S
tx.commit                   90.20 C  >tx.commit-ok
tx.commit-ok                90.21 S
tx.rollback                 90.30 C  >tx.rollback-ok
tx.rollback-ok              90.31 S
"""  # noqa: E501 - a table reads best with one method to a line

_SENDERS = {
    "C": frozenset({Side.CLIENT}),
    "S": frozenset({Side.SERVER}),
    "*": frozenset({Side.CLIENT, Side.SERVER}),
}


def _read_line(line: str) -> MethodSpec:
    name, number, sender, *words = line.split()
    major, minor = number.split(".")
    return MethodSpec(
        name,
        int(major) << 16 | int(minor),
        _SENDERS[sender],
        tuple((word.partition(":")[0], word.partition(":")[2]) for word in words if ":" in word),
        replies=tuple(words[0][1:].split("|")) if words and words[0][0] == ">" else (),
        content="content" in words,
        is_reply=name.endswith(("-ok", "-empty")),
    )


METHODS: dict[str, MethodSpec] = {
    found.name: found for found in map(_read_line, _TABLE.strip().splitlines())
}
"""All methods by name."""
BY_ID: dict[int, MethodSpec] = {found.id: found for found in METHODS.values()}
"""All methods by id (class id << 16 | method id)."""


def spec(name: str) -> MethodSpec:
    """Return the method with the given name. Raises KeyError if it does not exist."""
    return METHODS[name]


_NUMBERS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
}
_LENGTH = struct.Struct(">I")


def encode_arguments(method: MethodSpec, arguments: Mapping[str, Any]) -> bytes:
    """Encode the arguments of a method. Missing arguments are zero, empty or False."""
    unknown = arguments.keys() - {name for name, _ in method.arguments}
    if unknown:
        raise ProtocolError(f"{method.name} has no argument {', '.join(sorted(unknown))}")
    parts = [_LENGTH.pack(method.id)]
    bits: list[bool] = []
    for name, kind in method.arguments:
        value = arguments.get(name)
        if kind == "bit":
            bits.append(bool(value))
            continue
        _put_bits(bits, parts)
        parts.append(_encode_argument(method, name, kind, value))
    _put_bits(bits, parts)
    return b"".join(parts)


def _put_bits(bits: list[bool], parts: list[bytes]) -> None:
    """Pack consecutive bits into an octet."""
    if bits:
        parts.append(bytes((sum(bit << place for place, bit in enumerate(bits)),)))
        bits.clear()


def _encode_argument(method: MethodSpec, name: str, kind: str, value: Any) -> bytes:
    where = f"{method.name} {name}"
    if kind == "table":
        return encode_table(value or {})
    if kind in _NUMBERS:
        try:
            return _NUMBERS[kind].pack(value or 0)
        except struct.error as problem:
            raise ProtocolError(f"{where}: got {value!r}: {problem}") from None
    try:
        raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value or b""
    except UnicodeEncodeError:
        raise ProtocolError(f"{where}: expected valid text, got {value!r}") from None
    if kind == "longstr":
        return _LENGTH.pack(len(raw)) + raw
    if len(raw) > 255:
        raise ProtocolError(f"{where}: expected at most 255 bytes, got {len(raw)}")
    return bytes((len(raw),)) + raw


def decode_arguments(
    method: MethodSpec, payload: bytes, errors: str = "surrogateescape"
) -> dict[str, Any]:
    """Decode the arguments of a method.

    `errors` is the error handler for short strings that are not UTF-8.
    """
    found: dict[str, Any] = {}
    position, bit = 4, 0
    try:
        for name, kind in method.arguments:
            if kind == "bit":
                found[name] = bool(payload[position] >> bit & 1)
                bit += 1
                continue
            position, bit = position + bool(bit), 0
            found[name], position = _decode_argument(kind, payload, position, errors)
    except (IndexError, struct.error):
        raise ProtocolError(f"expected {method.name}, got a frame that is too short") from None
    if position + bool(bit) != len(payload):
        raise ProtocolError(
            f"expected the end of {method.name}, got {len(payload) - position} bytes"
        )
    found.pop("_", None)
    return found


def _decode_argument(kind: str, payload: bytes, position: int, errors: str) -> tuple[Any, int]:
    if kind == "shortstr":
        end = position + 1 + payload[position]
        return _check(payload, position + 1, end).decode("utf-8", errors), end
    if kind == "longstr":
        start = position + 4
        end = start + int(_LENGTH.unpack_from(payload, position)[0])
        return _check(payload, start, end), end
    if kind == "table":
        return decode_table(payload, position)
    number = _NUMBERS[kind]
    return number.unpack_from(payload, position)[0], position + number.size


def _check(payload: bytes, start: int, end: int) -> bytes:
    if end > len(payload):
        raise ProtocolError(f"expected {end - start} bytes, got {len(payload) - start}")
    return payload[start:end]
