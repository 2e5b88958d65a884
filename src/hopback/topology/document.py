"""A topology as a plain document: what JSON holds as it is, and TOML too.

`to_document` writes every topology; `from_document` reads it back equal, and reads the short form
that people write by hand. The format is described in `docs/reference/topology-file.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import InvalidTopology
from hopback.topology.document_reader import read_document
from hopback.topology.document_writer import write_explicit, write_short
from hopback.topology.validate import problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hopback.topology.model import Topology

__all__ = ["from_document", "to_document"]


def from_document(data: Mapping[str, object], *, where: str = "topology") -> Topology:
    """The topology that a document describes; InvalidTopology lists everything wrong with it."""
    return read_document(data, where=where)


def to_document(topology: Topology, *, terse: bool = False) -> dict[str, object]:
    """The topology as plain dicts, lists, texts and numbers.

    `terse` is for people: defaults are left out, and what follows the recommended pattern is
    written in its short form, where that is read back as the same topology.
    InvalidTopology if it is not valid: a document has each name once, for one.
    """
    found = problems(topology)
    if found:
        raise InvalidTopology(found, where=f"topology {topology.name!r}")
    if not terse:
        return write_explicit(topology, terse=False)
    candidates = (write_short(topology, nested=nested) for nested in (True, False))
    same = (candidate for candidate in candidates if read_document(candidate) == topology)
    return next(same, None) or write_explicit(topology, terse=True)
