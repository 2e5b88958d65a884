"""Acks as few frames as is exact, checked against a broker that believes every frame."""

from __future__ import annotations

import struct

import pytest

from hopback.wire.settlement import Settlements


class _Ledger:
    """The effect of the frames on a broker: settled tags and their settlement."""

    def __init__(self, *delivered: int) -> None:
        self.held = set(delivered)
        self.settled: dict[int, str] = {}
        self.unknown: list[int] = []
        self.frames = 0

    def read(self, raw: bytes) -> None:
        for at in range(0, len(raw), 21):
            kind, channel, size, method, tag, bits, end = struct.unpack_from(">BHIIQBB", raw, at)
            assert (kind, channel, size, end) == (1, 7, 13, 0xCE)
            self.frames += 1
            self._settle(method & 0xFFFF, tag, bits)

    def _settle(self, method: int, tag: int, bits: int) -> None:
        name = {80: "ack", 90: "reject", 120: "nack"}[method]
        if method == 90:
            name += "+requeue" if bits & 1 else ""
        elif method == 120:
            name += "+requeue" if bits & 2 else ""
        several = method != 90 and bits & 1
        tags = {t for t in self.held if not tag or t <= tag} if several else {tag} & self.held
        if not tags:
            self.unknown.append(tag)
        self.held -= tags
        self.settled.update(dict.fromkeys(tags, name))


def _channel(*delivered: int) -> tuple[Settlements, _Ledger]:
    settlements = Settlements(7)
    settlements.unsettled.update(dict.fromkeys(delivered, True))
    return settlements, _Ledger(*delivered)


def _flush(settlements: Settlements, ledger: _Ledger) -> None:
    out: list[bytes] = []
    settlements.flush(out)
    ledger.read(b"".join(out))


def test_acks_of_one_turn_are_one_frame() -> None:
    settlements, ledger = _channel(1, 2, 3, 4)
    for tag in (2, 1, 3):
        settlements.ack(tag)
    _flush(settlements, ledger)
    assert ledger.settled == {1: "ack", 2: "ack", 3: "ack"}
    assert (ledger.held, ledger.frames) == ({4}, 1)


def test_held_delivery_is_never_covered_by_multiple_ack() -> None:
    settlements, ledger = _channel(1, 2, 3, 4)
    for tag in (1, 3, 4):
        settlements.ack(tag)
    _flush(settlements, ledger)
    assert ledger.settled == {1: "ack", 3: "ack", 4: "ack"}
    assert (ledger.held, ledger.frames) == ({2}, 3)


def test_nack_in_same_turn_is_kept() -> None:
    settlements, ledger = _channel(1, 2, 3)
    settlements.ack(1)
    settlements.ack(3)
    settlements.nack(2, requeue=False)
    _flush(settlements, ledger)
    assert ledger.settled == {1: "ack", 2: "nack", 3: "ack"}
    assert ledger.frames == 2


def test_nacks_and_rejects_are_single_frames() -> None:
    settlements, ledger = _channel(1, 2, 3, 4)
    settlements.nack(1, requeue=True)
    settlements.nack(2, requeue=False)
    settlements.reject(3, requeue=True)
    settlements.reject(4, requeue=False)
    _flush(settlements, ledger)
    assert ledger.settled == {1: "nack+requeue", 2: "nack", 3: "reject+requeue", 4: "reject"}
    assert list(ledger.settled) == [1, 2, 3, 4]


def test_multiple_ack_follows_earlier_acks() -> None:
    settlements, ledger = _channel(1, 2, 3, 4)
    settlements.ack(2)
    settlements.ack_through(3)
    settlements.ack(4)
    _flush(settlements, ledger)
    assert set(ledger.settled) == {1, 2, 3, 4}
    assert ledger.unknown == []


@pytest.mark.parametrize("tag", [0, 4])
def test_multiple_nack_settles_all_up_to_tag(tag: int) -> None:
    settlements, ledger = _channel(1, 2, 3, 4)
    settlements.nack(tag, requeue=True, multiple=True)
    _flush(settlements, ledger)
    assert ledger.held == set()
    assert not settlements.unsettled


def test_tag_settled_twice_reaches_broker_twice() -> None:
    """The broker answers with 406."""
    settlements, ledger = _channel(1, 2)
    settlements.ack(1)
    settlements.ack(1)
    _flush(settlements, ledger)
    assert ledger.settled == {1: "ack"}
    assert ledger.unknown == [1]
    assert ledger.held == {2}


def test_flush_writes_each_settlement_once() -> None:
    settlements, ledger = _channel(1)
    settlements.ack(1)
    _flush(settlements, ledger)
    _flush(settlements, ledger)
    assert ledger.frames == 1
    assert not settlements.pending


def test_recovered_deliveries_do_not_prevent_multiple_ack() -> None:
    settlements, _ = _channel(1, 2)
    settlements.forget()
    settlements.unsettled.update({3: True, 4: True})
    ledger = _Ledger(3, 4)
    settlements.ack(3)
    settlements.ack(4)
    _flush(settlements, ledger)
    assert (set(ledger.settled), ledger.frames) == ({3, 4}, 1)


def test_held_deliveries_are_stored_as_range() -> None:
    settlements, ledger = _channel(*range(1, 1001))
    for tag in range(1, 1001):
        if tag != 500:
            settlements.hold(tag)
    assert settlements.held == [range(1, 500), range(501, 1001)]
    settlements.ack(500)
    settlements.ack(7)
    _flush(settlements, ledger)
    assert ledger.settled == {500: "ack", 7: "ack"}
    assert settlements.held == [range(1, 7), range(8, 500), range(501, 1001)]
    settlements.nack(1000, requeue=True, multiple=True)
    assert (settlements.held, settlements.unsettled) == ([], {})
