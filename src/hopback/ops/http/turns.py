"""Limit the rate of requests and count the open requests of each caller."""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

# callers, which need about 2 MB of memory. A caller that was forgotten starts with all turns again.
_MOST_CALLERS = 10_000
# bits of the prefix of an IPv6 site, whose 2^64 addresses can all be used by one caller
_IPV6_SITE = 64


class TurnKeeper:
    """Limit each caller to `rate` requests per second, with bursts of up to `burst` requests."""

    def __init__(self, rate: float, burst: int, time: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._time = time
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take a turn and return 0. If there is none left, return the seconds until the next one."""
        now = self._time()
        left, since = self._left.pop(caller, (self._burst, now))
        # If the clock is set back, no turns are added or removed.
        left = min(left + max(now - since, 0.0) * self._rate, self._burst)
        taken = left >= 1.0
        self._left[caller] = (left - 1.0 if taken else left, now)
        if len(self._left) > _MOST_CALLERS:
            self._left.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._rate


class CallerCounts(Counter[str]):
    """Count per caller. A caller with a count of zero does not use memory."""

    def drop(self, caller: str) -> None:
        self[caller] -= 1
        if not self[caller]:
            del self[caller]


def address_of(request: Request) -> str:
    """Return the client's address. For IPv6 it is the address of the site (/64).

    With `--proxied`, the address is reported by the proxy.
    """
    host = "unknown" if request.client is None else request.client.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4 or address.is_loopback:
        return host
    return str(ipaddress.ip_network((address, _IPV6_SITE), strict=False))
