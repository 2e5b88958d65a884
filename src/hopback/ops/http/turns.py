"""How often and how much a caller may ask: turns per second, and counts of open requests."""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

_MOST_CALLERS = 10_000  # about 2 MB of memory. A forgotten caller starts again with all its turns.
_IPV6_SITE = 64  # bits of a site's prefix: a caller can use all 2^64 addresses of its site


class TurnKeeper:
    """Limits each caller to `rate` turns per second, with bursts of up to `burst` turns."""

    def __init__(self, rate: float, burst: int, time: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._time = time
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take a turn and return 0, or return the seconds until the caller's next turn."""
        now = self._time()
        left, since = self._left.pop(caller, (self._burst, now))
        # A clock that was set back neither adds nor removes turns.
        left = min(left + max(now - since, 0.0) * self._rate, self._burst)
        taken = left >= 1.0
        self._left[caller] = (left - 1.0 if taken else left, now)
        if len(self._left) > _MOST_CALLERS:
            self._left.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._rate


class CallerCounts(Counter[str]):
    """Counts per caller. A caller without a count takes no memory."""

    def drop(self, caller: str) -> None:
        """Decrement a caller's count."""
        self[caller] -= 1
        if not self[caller]:
            del self[caller]


def address_of(request: Request) -> str:
    """Return the client's address, or its site (/64) for IPv6. With `--proxied`, the proxy reports the
    address.
    """
    host = "unknown" if request.client is None else request.client.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4 or address.is_loopback:
        return host
    return str(ipaddress.ip_network((address, _IPV6_SITE), strict=False))
