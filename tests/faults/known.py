"""Names of existing objects, so that not all requests fail with "not found"."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.harness.seeded import MAILS, ORDERS, PAYMENTS

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from schemathesis import Case, Response

__all__ = ["Known"]

_MOST = 5
_JSON = "application/json"
_JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 2**70, 1e300, "", "\x00", "q" * 300, [], {}, [None], {"": ""},
)  # fmt: skip
_SEEDED: dict[str, list[Any]] = {
    "queue": [f"{queue}.dlq" for queue in (ORDERS, PAYMENTS, MAILS)],
    "exchange": ["shop.events", ""],
    "routingKey": ["order.created", ORDERS],
    "filter": ["attempts>=1", 'error:LookupError age<2h payload.customer:"c-3"', "reason:*"],
    "limit": [1, 2, 3],
    "ttlSeconds": [300],
}
_SLOW = {"kind": "re-drive", "queue": f"{PAYMENTS}.dlq", "reason": "slow", "pace": {"rate": 0.1}}
_QUICK = {
    "kind": "re-drive",
    "queue": f"{ORDERS}.dlq",
    "reason": "repaired",
    "selection": {"limit": 1},
}
_DISCARD = {**_QUICK, "kind": "discard", "confirm": f"{ORDERS}.dlq", "export": False}
_BODIES: dict[str, list[Any]] = {
    "createJob": [_SLOW, _QUICK, {**_QUICK, "dryRun": True}, _DISCARD],
    "openSession": [{"limit": 1}, {"limit": 3, "force": True}],
}
_MEANT = {"confirm": "queue", "queues": "queue", "ids": "message"}
"""Fields that contain names of another kind of object."""
_MADE = {"openSession": "session", "createJob": "job", "retryFailures": "job"}


class Known:
    """Remembers objects that exist, either from the start or from responses, such as sessions,
    messages, jobs and keys.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._names = defaultdict(list, copy.deepcopy(_SEEDED))
        self._bodies = defaultdict(list, copy.deepcopy(_BODIES))
        self._dead_letters: list[dict[str, Any]] = []

    def put_into(self, case: Case[Any]) -> None:
        """Replace half of the names in a request with existing ones, and some bodies with slightly
        changed valid ones.
        """
        if not case.path.endswith("/events"):  # the stream would stay open as long as the job runs
            case.path_parameters = self._place(case.path_parameters)
        case.query = self._put(case.query)
        if isinstance(case.body, dict):
            case.body = self._body(_name(case), case.body)

    def learn(self, case: Case[Any], answer: Response) -> None:
        """Remember the objects in a response."""
        if answer.status_code // 100 != 2 or answer.headers.get("content-type") != [_JSON]:
            return
        operation, document = _name(case), answer.json()
        if operation == "listMessages":
            dead_letters = (
                {**case.path_parameters, "message": one["id"]} for one in document["items"]
            )
            self._dead_letters = [*dead_letters, *self._dead_letters][:_MOST]
        if operation == "showTopology":
            self._bodies["planTopology"] = [{"topology": document["topology"]}]
        for kind, name in _told(operation, document):
            self._names[kind] = [name, *self._names[kind]][:_MOST]

    def _maybe(self) -> bool:
        return self._chance.random() < 0.5

    def _place(self, names: dict[str, Any]) -> dict[str, Any]:
        """Replace the names in a path. A message needs the session to which it belongs."""
        if "message" in names and self._dead_letters and self._maybe():
            return self._chance.choice(self._dead_letters)
        return self._put(names)

    def _body(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        bodies = self._bodies[operation]
        if bodies and self._maybe():
            return self._bent(self._chance.choice(bodies))
        return self._put(body)

    def _put(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {key: self._chosen(_MEANT.get(key, key), value) for key, value in fields.items()}

    def _chosen(self, kind: str, value: Any) -> Any:
        names = self._names.get(kind)
        if names and self._maybe():
            name = self._chance.choice(names)
            return [name] if isinstance(value, list) else name
        return self._put(value) if isinstance(value, dict) else value

    def _bent(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the document. In half of the cases, one value is replaced with an
        invalid one.
        """
        bent = copy.deepcopy(document)
        if self._maybe():
            place, key = self._chance.choice(list(_places(bent)))
            place[key] = self._chance.choice(_JUNK)
        return bent


def _name(case: Case[Any]) -> str:
    return str(case.operation.definition.raw["operationId"])


def _told(operation: str, document: Any) -> Iterator[tuple[str, Any]]:
    # Don't remember empty sessions. A dry run of a job has no id.
    if operation in _MADE and "id" in document and document.get("held", 1):
        yield _MADE[operation], document["id"]
    if operation == "makeKey":
        yield "key", document["key"]["id"]
    if operation == "listMessages":
        yield from (("message", dead_letter["id"]) for dead_letter in document["items"])
    if document.get("cursor"):
        yield "cursor", document["cursor"]


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all values that can be replaced."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in pairs:
        yield document, key
        if isinstance(value, dict | list):
            yield from _places(value)
