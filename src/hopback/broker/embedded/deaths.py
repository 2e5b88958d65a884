"""The broker's record of deaths: `x-death` in the form of each version, and cycles found by it.

An entry stands for one {queue, reason}. Its count grows with each further death of that kind; its
time, exchange and routing keys stay those of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from hopback.broker.embedded.stored import StoredContent, copied_table, taken_off, with_headers
from hopback.fields import Timestamp

if TYPE_CHECKING:
    from hopback.broker.embedded.profile import Profile
    from hopback.fields import FieldValue, Headers

__all__ = ["MalformedDeaths", "Reason", "bury", "is_cycle", "published_deaths"]

_Table: TypeAlias = "dict[str, FieldValue]"


class Reason(StrEnum):
    """Why a message left its queue as a dead letter."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


class MalformedDeaths(Exception):
    """An `x-death` that the queue process of an old broker does not survive."""


def published_deaths(headers: Headers, profile: Profile) -> tuple[_Table, ...]:
    """What a client's own `x-death` counts for when it is published (3.13.3 to before 4.0)."""
    found = headers.get("x-death")
    if profile.scrambles_deaths or not profile.interprets_published_deaths:
        return ()
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        return ()
    return tuple(copied_table(table) for table in found if isinstance(table, Mapping))


def bury(
    content: StoredContent,
    queue: str,
    reason: Reason,
    *,
    exchange: str,
    routing_key: str | None,
    now: float,
    profile: Profile,
) -> StoredContent:
    """The dead letter that `content` becomes when it dies in `queue`."""
    headers = dict(content.headers)  # what is inside is shared, and never changed
    death = _death(content, queue, reason, now)
    deaths = _recorded(headers, content.deaths, death, profile)
    _write(headers, deaths, death, content, profile)
    further = content.properties.further_headers
    if routing_key is not None and profile.removes_cc:
        further = taken_off(headers, further, "CC")
    headers = dict(sorted(headers.items()))
    dead_letter = StoredContent(
        content.body,
        with_headers(content.properties, headers, keep_expiration=False, further=further),
        headers,
        exchange,
        content.keys if routing_key is None else (routing_key,),
        content.origin,
        () if profile.scrambles_deaths else tuple(deaths),
    )
    dead_letter.buried_at = now
    dead_letter.hops = content.hops + 1 if content.buried_at == now else 1
    return dead_letter


def is_cycle(content: StoredContent, queue: str) -> bool:
    """Whether the dead letter was in `queue` before and nobody rejected it since."""
    deaths = content.headers.get("x-death")
    for table in deaths if isinstance(deaths, list) else ():
        if not isinstance(table, dict):
            continue
        if table.get("reason") == Reason.REJECTED:
            return False
        if table.get("queue") == queue:
            return True
    return False


def _death(content: StoredContent, queue: str, reason: Reason, now: float) -> _Table:
    copies = content.headers.get("CC")
    keys = [content.keys[0], *(copies if isinstance(copies, list) else ())]
    death: _Table = {
        "count": 1,
        "reason": str(reason),
        "queue": queue,
        "time": Timestamp(now),
        "exchange": content.exchange,
        "routing-keys": [key for key in keys if isinstance(key, str)],
    }
    if content.properties.expiration is not None:
        death["original-expiration"] = content.properties.expiration
    return death


def _recorded(
    headers: _Table, own: tuple[_Table, ...], death: _Table, profile: Profile
) -> list[_Table]:
    """The deaths so far and this one, most recent first."""
    older: list[_Table] = list(own)
    if profile.scrambles_deaths:
        older = _read(headers.get("x-death"))
        if len(older) > 1:
            older.reverse()
    same = [table for table in older if _same(table, death)]
    others = [table for table in older if not _same(table, death)]
    return [_again(same[0]) if same else death, *others]


def _read(found: FieldValue) -> list[_Table]:
    """What an old broker takes from the header; anything but an array is begun anew."""
    if not isinstance(found, list):
        return []
    tables = [table for table in found if isinstance(table, dict)]
    if len(tables) != len(found):
        raise MalformedDeaths("an entry of x-death is not a table")
    return tables


def _same(table: _Table, death: _Table) -> bool:
    return table.get("queue") == death["queue"] and table.get("reason") == death["reason"]


def _again(table: _Table) -> _Table:
    """The entry with its count raised; a new table, because copies share the old one."""
    count = table.get("count", 1)
    if not isinstance(count, int):
        raise MalformedDeaths("the count of an entry of x-death is not an integer")
    return {**table, "count": int(count) + 1}


def _write(
    headers: _Table, deaths: list[_Table], death: _Table, content: StoredContent, profile: Profile
) -> None:
    """Put the record into the headers, and the names of the first and the last death."""
    last = {f"x-last-death-{key}": death[key] for key in ("exchange", "queue", "reason")}
    first = {f"x-first-death-{key}": death[key] for key in ("exchange", "queue", "reason")}
    begun = "x-death" in headers if profile.scrambles_deaths else bool(content.deaths)
    headers["x-death"] = list(deaths)
    if not begun:
        headers.update(first)
    if profile.last_death_headers:
        headers.update(last)
