"""Lists of the management API in pages and filtered by name, as RabbitMQ gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from hopback.topology.policy_pattern import pattern_flaw, pattern_matches

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.endpoint import Request
    from hopback.version import BrokerVersion

__all__ = ["BadPage", "paged"]

_MOST_PER_PAGE = 500
"""RabbitMQ's own limit."""


class BadPage(ValueError):
    """The page that was asked for cannot be given; `error` is the word for it."""

    def __init__(self, error: str, reason: str) -> None:
        super().__init__(reason)
        self.error = error


def paged(entries: list[dict[str, Any]], request: Request, version: BrokerVersion) -> object:
    """All of them, or the page that was asked for, of those whose names match.

    As in RabbitMQ they are in the order of their names, which are filtered only where a page is
    asked for.
    """
    if entries and "name" in entries[0]:
        entries = sorted(entries, key=lambda each: (each.get("vhost", ""), each["name"]))
    asked = {
        key: values[-1] for key, values in parse_qs(request.query, keep_blank_values=True).items()
    }
    if "page" not in asked:
        return entries
    number, size = _number(asked["page"]), _number(asked.get("page_size", "100"))
    if number < 1 or not 1 <= size <= _MOST_PER_PAGE:
        told = str(size) if "page_size" in asked else "undefined"
        words = f"Invalid pagination parameters: page number {number}, page size {told}"
        raise BadPage("invalid_pagination_parameters", words)
    matches = _filter(asked, version)
    found = [each for each in entries if matches(str(each["name"]))] if matches else entries
    pages = -(-len(found) // size)
    if number > max(1, pages):
        words = f"Page out of range, page: {number} page size: {size}, len: {len(found)}"
        raise BadPage("page_out_of_range", words)
    items = found[(number - 1) * size : number * size]
    return {
        "filtered_count": len(found),
        "item_count": len(items),
        "items": items,
        "page": number,
        "page_count": pages,
        "page_size": size,
        "total_count": len(entries),
    }


def _filter(asked: dict[str, str], version: BrokerVersion) -> Callable[[str], object] | None:
    """What a name must fulfil; None where every one will do. Upper and lower case are the same."""
    wanted = asked.get("name", "")
    if not wanted:
        return None
    if asked.get("use_regex") != "true":
        return lambda name: wanted.lower() in name.lower()
    pattern = f"(?i){wanted}"
    if pattern_flaw(pattern) is not None and (version.major, version.minor) < (4, 3):
        raise BadPage("bad_request", "Pagination parameters are invalid")
    return lambda name: pattern_matches(pattern, name)


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise BadPage("bad_request", "Pagination parameters are invalid")
    return int(text)
