"""Combine the acks of one loop turn into few frames. Nacks and rejects are sent one by one.

`multiple` settles every tag up to the given one. It is used only if no lower tag is unsettled, so
it never covers a delivery that is still being handled. Nacks are sent before acks, so a tag nacked
in the same turn is settled before the `multiple` ack arrives.

A client that browses a queue holds all its messages until the end. Such deliveries are stored as
ranges of tags, because a million single tags would take a hundred megabytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_right, insort
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_FRAME = struct.Struct(">BHIIQBB")
_pack = _FRAME.pack
_ACK, _NACK, _REJECT = (60 << 16) | 80, (60 << 16) | 120, (60 << 16) | 90
_MULTIPLE, _REQUEUE = 1, 2
_start = attrgetter("start")


class Settlements:
    """The unsettled deliveries of one channel and the settlement frames to write.

    Unknown tags are sent unchanged. The broker answers them.
    """

    __slots__ = ("_acks", "_frames", "channel", "held", "unsettled")

    def __init__(self, channel: int) -> None:
        self.channel: int = channel
        self.unsettled: dict[int, bool] = {}
        """Unsettled tags in order of delivery, which is ascending. Held tags are not included."""
        self.held: list[range] = []
        """Ascending ranges of held tags. They do not overlap."""
        self._acks: list[int] = []
        self._frames: list[bytes] = []

    @property
    def pending(self) -> bool:
        """Whether `flush` has something to write."""
        return bool(self._acks or self._frames)

    def hold(self, tag: int) -> None:
        """Keep a delivery unsettled until the channel ends or a multiple ack or nack covers it."""
        if not self.unsettled.pop(tag, False):
            return
        held = self.held
        if held and held[-1].stop == tag:
            held[-1] = range(held[-1].start, tag + 1)
        else:
            insort(held, range(tag, tag + 1), key=_start)

    def ack(self, tag: int) -> None:
        self._acks.append(tag)

    def ack_through(self, tag: int) -> None:
        """Acknowledge everything up to `tag`. 0 means everything."""
        self._settle_through(tag)
        self._frames.append(_pack(1, self.channel, 13, _ACK, tag, _MULTIPLE, 0xCE))

    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        """Requeue or dead-letter one delivery, or everything up to it."""
        if multiple:
            self._settle_through(tag)
        else:
            self._settle(tag)
        bits = requeue * _REQUEUE | multiple * _MULTIPLE
        self._frames.append(_pack(1, self.channel, 13, _NACK, tag, bits, 0xCE))

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Requeue or dead-letter one delivery with basic.reject."""
        self._settle(tag)
        self._frames.append(_pack(1, self.channel, 13, _REJECT, tag, int(requeue), 0xCE))

    def forget(self) -> None:
        """Everything unsettled went back to its queues (basic.recover)."""
        self.unsettled.clear()
        self.held.clear()

    def _settle(self, tag: int) -> bool:
        """Settle a delivery. Return whether it was unsettled."""
        if self.unsettled.pop(tag, False):
            return True
        at = bisect_right(self.held, tag, key=_start) - 1
        if at < 0 or tag not in self.held[at]:
            return False
        held = self.held[at]
        pieces = range(held.start, tag), range(tag + 1, held.stop)
        self.held[at : at + 1] = [piece for piece in pieces if piece]
        return True

    def _settle_through(self, tag: int) -> None:
        """Acks asked for before must leave before, or they would name tags already settled."""
        self._frames.extend(self._ack_frames())
        for known in [known for known in self.unsettled if known <= tag or not tag]:
            del self.unsettled[known]
        rest = (range(max(held.start, tag + 1), held.stop) for held in self.held if tag)
        self.held = [held for held in rest if held]

    def flush(self, out: list[bytes]) -> None:
        """Append all that is to be written."""
        if self._frames:
            out += self._frames
            self._frames = []
        if self._acks:
            out += self._ack_frames()

    def _ack_frames(self) -> list[bytes]:
        acks, self._acks = self._acks, []
        pop = self.unsettled.pop
        if self.held:
            known = [tag for tag in acks if self._settle(tag)]
        else:
            known = [tag for tag in acks if pop(tag, False)]
        lowest = next(iter(self.unsettled), 1 << 64)
        if self.held:
            lowest = min(lowest, self.held[0].start)
        covered = [tag for tag in known if tag < lowest]
        if len(covered) > 1:
            frames = [_pack(1, self.channel, 13, _ACK, max(covered), _MULTIPLE, 0xCE)]
        else:
            frames = self._singles(covered)
        if len(covered) < len(acks):
            # First the acks above a held delivery, then unknown tags, which the broker refuses.
            frames += self._singles(tag for tag in known if tag > lowest)
            frames += self._singles((Counter(acks) - Counter(known)).elements())
        return frames

    def _singles(self, tags: Iterable[int]) -> list[bytes]:
        return [_pack(1, self.channel, 13, _ACK, tag, 0, 0xCE) for tag in tags]
