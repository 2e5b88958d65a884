"""The rows, by subject. Importing this package enters them all."""

from hopback.renamed import OldNameLookup, old_names
from hopback.testing.conformance.chapters import (
    arguments,
    consuming,
    cycles,
    dead_letters,
    declaring,
    expiry,
    limits,
    nodes,
    on_the_wire,
    policies,
    properties,
    publishing,
    quorum,
    republished,
    returning,
    routing,
)

__all__ = [
    "arguments",
    "consuming",
    "cycles",
    "dead_letters",
    "declaring",
    "expiry",
    "limits",
    "nodes",
    "on_the_wire",
    "policies",
    "properties",
    "publishing",
    "quorum",
    "republished",
    "returning",
    "routing",
]

__getattr__: OldNameLookup = old_names(
    __name__,
    {"delayed_retry": f"{__name__}.quorum", "looking": f"{__name__}.returning"},
)
