"""How often a caller may ask: turns per second, counted by caller or by network address."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

_MOST_CALLERS = 10_000  # about 2 MB; an address that is forgotten begins with a full bucket
_IPV6_SITE = 64  # one site has 2^64 addresses: counting each alone would limit nobody


class TurnKeeper:
    """Gives each caller `rate` turns a second, and `burst` at once; forgets the longest silent."""

    def __init__(self, rate: float, burst: int, time: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._time = time
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """0 if it is the caller's turn, else the seconds until it is."""
        now = self._time()
        left, since = self._left.pop(caller, (self._burst, now))
        # A clock may be set back: then nothing was gained, and nothing may be lost.
        left = min(left + max(now - since, 0.0) * self._rate, self._burst)
        taken = left >= 1.0
        self._left[caller] = (left - 1.0 if taken else left, now)
        if len(self._left) > _MOST_CALLERS:
            self._left.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._rate


def address_of(request: Request) -> str:
    """Where a request comes from; of IPv6 the site (/64). Behind a proxy, what that says (`--proxied`)."""
    host = "unknown" if request.client is None else request.client.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4 or address.is_loopback:
        return host
    return str(ipaddress.ip_network((address, _IPV6_SITE), strict=False))
