"""Combine acks into as few frames as possible.

`multiple` is only used if there are no unsettled deliveries with a lower tag. Nacks and rejects are
sent individually, before the acks.

A client that browses a queue holds all messages until the end. These are stored as ranges of tags,
because a million single tags would need about 100 MB.
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
    """The unsettled deliveries of a channel and the settlements to write.

    Unknown tags are sent to the broker as well.
    """

    __slots__ = ("_acks", "_frames", "channel", "held", "unsettled")

    def __init__(self, channel: int) -> None:
        self.channel: int = channel
        self.unsettled: dict[int, bool] = {}
        """Unsettled tags in ascending order, without held ones."""
        self.held: list[range] = []
        """Ranges of held tags in ascending order."""
        self._acks: list[int] = []
        self._frames: list[bytes] = []

    @property
    def pending(self) -> bool:
        """True if there are frames to write."""
        return bool(self._acks or self._frames)

    def hold(self, tag: int) -> None:
        """Hold a delivery until the channel is closed, or until it is settled with `multiple`."""
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
        """Acknowledge all deliveries up to `tag`. 0 means all of them."""
        self._settle_through(tag)
        self._frames.append(_pack(1, self.channel, 13, _ACK, tag, _MULTIPLE, 0xCE))

    def nack(self, tag: int, *, requeue: bool, multiple: bool = False) -> None:
        """Requeue or dead-letter a delivery, or all deliveries up to it."""
        if multiple:
            self._settle_through(tag)
        else:
            self._settle(tag)
        bits = requeue * _REQUEUE | multiple * _MULTIPLE
        self._frames.append(_pack(1, self.channel, 13, _NACK, tag, bits, 0xCE))

    def reject(self, tag: int, *, requeue: bool) -> None:
        """Requeue or dead-letter a delivery with basic.reject."""
        self._settle(tag)
        self._frames.append(_pack(1, self.channel, 13, _REJECT, tag, int(requeue), 0xCE))

    def forget(self) -> None:
        """Forget all unsettled deliveries after basic.recover."""
        self.unsettled.clear()
        self.held.clear()

    def _settle(self, tag: int) -> bool:
        """Remove a delivery. Returns True if it was unsettled."""
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
        """Remove all deliveries up to `tag`. Earlier acks have to be written first."""
        self._frames.extend(self._ack_frames())
        for known in [known for known in self.unsettled if known <= tag or not tag]:
            del self.unsettled[known]
        rest = (range(max(held.start, tag + 1), held.stop) for held in self.held if tag)
        self.held = [held for held in rest if held]

    def flush(self, out: list[bytes]) -> None:
        """Append all pending frames to `out`."""
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
            # First the acks above a held delivery, then unknown tags.
            frames += self._singles(tag for tag in known if tag > lowest)
            frames += self._singles((Counter(acks) - Counter(known)).elements())
        return frames

    def _singles(self, tags: Iterable[int]) -> list[bytes]:
        return [_pack(1, self.channel, 13, _ACK, tag, 0, 0xCE) for tag in tags]
