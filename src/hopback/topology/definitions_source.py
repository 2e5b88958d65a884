"""From a definitions file to its data, and to the virtual host that is meant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hopback.errors import InvalidTopology, Problem
from hopback.topology.definitions_objects import SECTIONS
from hopback.topology.wording import did_you_mean, either, shown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from hopback.topology.located import Located

__all__ = ["choose_vhost", "load"]


def load(data: Mapping[str, object] | str | bytes, where: str) -> object:
    """The data in JSON text, or what was given if it is data already."""
    if not isinstance(data, str | bytes):
        return data
    try:
        return json.loads(data, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place, got = f"line {error.lineno}, column {error.colno}", error.msg
    except RecursionError:
        place, got = "file", "values nested too deeply"
    except ValueError as error:
        place, got = "file", str(error)
    raise InvalidTopology((Problem(place, "valid JSON", got),), where=where)


def choose_vhost(root: Located, sections: Mapping[str, Located], asked: str | None) -> str | None:
    """The virtual host to read; None where the file is of one virtual host and does not say which."""
    used = _texts("vhost", sections, SECTIONS)
    known = sorted({*used, *_texts("name", sections, ("vhosts",))})
    if asked in known or not known:
        return asked if known else None
    if asked is None and len(used or known) == 1:
        return (used or known)[0]
    choice = f"one of the virtual hosts in this file: {either(known)}"
    got = "no choice between them" if asked is None else shown(asked) + did_you_mean(asked, known)
    root.inner("vhost", asked).wrong(choice, got)
    return None


def _texts(key: str, sections: Mapping[str, Located], wanted: Iterable[str]) -> list[str]:
    """The texts under this key in all entries of these sections, sorted."""
    lists = [sections[section].value for section in wanted if section in sections]
    entries = [entry for items in lists if isinstance(items, list | tuple) for entry in items]
    values = [entry.get(key) for entry in entries if isinstance(entry, Mapping)]
    return sorted({value for value in values if isinstance(value, str)})


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text}, which JSON does not have")
