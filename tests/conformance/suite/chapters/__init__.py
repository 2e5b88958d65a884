"""The rows by subject. Importing this package registers them."""

from tests.conformance.suite.chapters import (
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
