"""Topology files: TOML that people write, and TOML that says everything.

The format is described in `docs/reference/topology-file.md`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hopback.errors import InvalidTopology, Problem
from hopback.topology.document import from_document, to_document

if TYPE_CHECKING:
    from hopback.topology.model import Topology

__all__ = ["read_toml", "write_toml"]

_POSITION = re.compile(r"(.*) \(at (.*)\)", re.DOTALL)


def read_toml(text: str, *, where: str = "topology.toml") -> Topology:
    """The topology in a TOML file; InvalidTopology lists everything wrong, each with its path.

    `where` names the file in that error.
    """
    # Reading a design needs no parser, so the parser is loaded only here.
    import tomllib

    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise _no_toml("line 1", "values nested too deeply", where) from None
    except ValueError as error:
        found = _POSITION.fullmatch(str(error))
        said, place = found.groups() if found else (str(error), "file")
        raise _no_toml(place, f"a syntax error: {said}", where) from None
    return from_document(data, where=where)


def write_toml(topology: Topology) -> str:
    """The topology as TOML that `read_toml` reads back equal; InvalidTopology if it is not valid."""
    import tomli_w

    return tomli_w.dumps(to_document(topology, terse=True))


def _no_toml(place: str, got: str, where: str) -> InvalidTopology:
    return InvalidTopology((Problem(place, "valid TOML", got),), where=where)
