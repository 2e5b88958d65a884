"""A topology as a JSON document."""

from __future__ import annotations

import json

from hopback.designs import DESIGNS
from hopback.topology.document import from_document, to_document
from hopback.topology.model import Binding, Exchange, Queue, Topology


def test_document_contains_all_values() -> None:
    shop = Topology(
        "shop",
        (Exchange("x", "topic"),),
        (Queue("q"),),
        (Binding("x", "q", "a.*"),),
        unconsumed=frozenset({"q"}),
    )
    assert to_document(shop) == {
        "name": "shop",
        "exchanges": {
            "x": {
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
        },
        "queues": {
            "q": {
                "pattern": "none",
                "consumers": False,
                "type": "classic",
                "durable": True,
                "exclusive": False,
                "auto_delete": False,
                "arguments": {},
            }
        },
        "bindings": [{"exchange": "x", "queue": "q", "key": "a.*", "arguments": {}}],
        "plans": {},
        "policies": {},
        "foreign": {},
    }


def test_terse_document_uses_short_form() -> None:
    own = DESIGNS["recommended"].build()
    assert to_document(own, terse=True) == {
        "name": "recommended",
        "queues": {"orders": {"retry": [{"delay": "30s"}, {"delay": "5m"}, {"delay": "30m"}]}},
    }
    assert from_document(json.loads(json.dumps(to_document(own)))) == own
