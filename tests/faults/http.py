"""HTTP requests by the thousand: each answer must match the OpenAPI document, and none may be a
5xx. Schemathesis generates valid and invalid requests from the document. Random names would rarely
match an existing queue, so every other name is replaced by an existing one.
"""

from __future__ import annotations

import random
import time
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisDeprecationWarning, Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup

from tests.acceptance.asking import SCHEMA, ask, asked_service, authorization
from tests.faults.known import Known

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from schemathesis import APIOperation, Case

    _Operation: TypeAlias = APIOperation[Any, Any, Any, Any]

__all__ = ["Asked", "fuzz_http"]

_ROUND = 10
"""Requests to an operation until it is the next one's turn."""
_ROUNDS = 5
"""Rounds until the service restarts with its initial messages."""
_SETTINGS = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],  # no retry, because the object may be gone
    suppress_health_check=list(HealthCheck),
)
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class _Way:
    """A share of the requests with one shape and one caller."""

    share: float
    mode: GenerationMode
    by_admin: bool

    def headers(self) -> dict[str, str] | None:
        """The credentials of the caller. An unauthenticated caller sends random ones."""
        return authorization() if self.by_admin else None


_WAYS = (
    _Way(0.6, GenerationMode.POSITIVE, by_admin=True),
    _Way(0.3, GenerationMode.NEGATIVE, by_admin=True),
    _Way(0.1, GenerationMode.NEGATIVE, by_admin=False),
)


@dataclass
class Asked:
    """The requests to the service and its answers."""

    operations: set[str] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, answer: requests.Response, **_: object) -> None:
        """Count an answer."""
        self.statuses[answer.status_code] += 1

    def of(self, hundred: int) -> int:
        """How many answers have a status of this hundred."""
        return sum(n for status, n in self.statuses.items() if hundred <= status < hundred + 100)

    def row(self) -> tuple[str, str, str]:
        """As a row of the page."""
        much = (
            f"{self.statuses.total():,} inputs to {len(self.operations)} operations in"
            f" {self.seconds / 60:.1f} min: {self.of(400):,} refused, {self.of(200):,} accepted,"
            f" {self.of(500):,} × 5xx"
        )
        return "bad input: HTTP requests", much, self._verdict()

    def _verdict(self) -> str:
        if not self.findings:
            return "only documented errors"
        return f"failed {len(self.findings):,} times: {self.findings[0]}"[:_SHOWN]


def fuzz_http(examples: int, chosen: int, until: float) -> Asked:
    """Send this number of requests to every operation, or as many as the time allows."""
    asked, began = Asked(), time.monotonic()
    for first in range(0, examples, _ROUND * _ROUNDS):
        with asked_service() as service, requests.Session() as session:
            session.hooks["response"].append(asked.note)
            known = Known(random.Random(f"{chosen} {first}"))
            asker = _Asker(service.url, session, asked, known)
            for here in range(first, min(first + _ROUND * _ROUNDS, examples), _ROUND):
                asker.ask_everything(min(_ROUND, examples - here), chosen * 1_000_000 + here)
        if time.monotonic() > until:
            break
    asked.seconds = time.monotonic() - began
    return asked


@dataclass(frozen=True, slots=True)
class _Asker:
    url: str
    session: requests.Session
    asked: Asked
    known: Known

    def ask_everything(self, examples: int, chosen: int) -> None:
        """One round: every operation in turn."""
        for operation in _ordered():
            for way in _WAYS:
                # an operation without parameters has no invalid request
                with suppress(Unsatisfiable):
                    self._ask(operation, way, max(round(examples * way.share), 1), chosen)

    def _ask(self, operation: _Operation, way: _Way, examples: int, chosen: int) -> None:
        @seed(chosen)
        @settings(_SETTINGS, max_examples=examples)
        @given(case=operation.as_strategy(generation_mode=way.mode, headers=way.headers()))
        def put(case: Case[Any]) -> None:
            if way.mode is GenerationMode.POSITIVE:  # otherwise an invalid value could be corrected
                self.known.put_into(case)
            self.asked.operations.add(operation.label)
            try:
                answer = ask(case, self.url, session=self.session, headers=way.headers())
            except (FailureGroup, requests.RequestException) as finding:
                self.asked.findings.append(_told(case, finding))
            else:
                self.known.learn(case, answer)

        with warnings.catch_warnings():
            # It mistakes the chance that the service takes, in a thread beside it, for its own.
            warnings.simplefilter("ignore", HypothesisDeprecationWarning)
            put()


def _ordered() -> list[_Operation]:
    """As the document has them, but that sessions, which hold messages, leave some for jobs."""
    return sorted((each for path in SCHEMA.values() for each in path.values()), key=_turn)


def _turn(operation: _Operation) -> int:
    """Order operations: creation first, deletion last."""
    if operation.method == "delete" or operation.path.endswith("/cancel"):
        return 2
    return int("session" in operation.path)


def _told(case: Case[Any], finding: BaseException) -> str:
    """The finding and its request in one line for a table cell."""
    each: Iterable[BaseException] = getattr(finding, "exceptions", (finding,))
    words = "; ".join(sorted(str(one) for one in each))
    told = f"{case.operation.label}: {words} for {case.as_curl_command()}"
    return " ".join(told.replace("|", "¦").split())
