"""Thousands of HTTP requests. Each response must match the OpenAPI document, and none may be a 5xx.

Schemathesis generates valid and invalid requests from the document. Random names would rarely match
an existing queue, so half of the names are replaced with existing ones.
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
"""The number of requests to an operation before the next operation is tested."""
_ROUNDS = 5
"""The number of rounds before the service restarts with its initial messages."""
_SETTINGS = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],  # requests are not repeated, because the object may not exist any more
    suppress_health_check=list(HealthCheck),
)
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class _Way:
    """A part of the requests, with their shape and their caller."""

    share: float
    mode: GenerationMode
    by_admin: bool

    def headers(self) -> dict[str, str] | None:
        """Return the credentials of an administrator, or None to send random ones."""
        return authorization() if self.by_admin else None


_WAYS = (
    _Way(0.6, GenerationMode.POSITIVE, by_admin=True),
    _Way(0.3, GenerationMode.NEGATIVE, by_admin=True),
    _Way(0.1, GenerationMode.NEGATIVE, by_admin=False),
)


@dataclass
class Asked:
    """The requests to the service and its responses."""

    operations: set[str] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, answer: requests.Response, **_: object) -> None:
        self.statuses[answer.status_code] += 1

    def of(self, hundred: int) -> int:
        """Return the number of responses with a status from `hundred` to `hundred + 99`."""
        return sum(n for status, n in self.statuses.items() if hundred <= status < hundred + 100)

    def row(self) -> tuple[str, str, str]:
        """Return the row of the page."""
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
    """Send `examples` requests to each operation. Stops earlier if the time is over."""
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
        """Run one round with all operations."""
        for operation in _sort_operations():
            for way in _WAYS:
                # an operation without parameters has no invalid requests
                with suppress(Unsatisfiable):
                    self._ask(operation, way, max(round(examples * way.share), 1), chosen)

    def _ask(self, operation: _Operation, way: _Way, examples: int, chosen: int) -> None:
        @seed(chosen)
        @settings(_SETTINGS, max_examples=examples)
        @given(case=operation.as_strategy(generation_mode=way.mode, headers=way.headers()))
        def put(case: Case[Any]) -> None:
            if way.mode is GenerationMode.POSITIVE:  # otherwise an invalid value could become valid
                self.known.put_into(case)
            self.asked.operations.add(operation.label)
            try:
                answer = ask(case, self.url, session=self.session, headers=way.headers())
            except (FailureGroup, requests.RequestException) as finding:
                self.asked.findings.append(_told(case, finding))
            else:
                self.known.learn(case, answer)

        with warnings.catch_warnings():
            # Hypothesis warns about random numbers that the service uses in another thread.
            warnings.simplefilter("ignore", HypothesisDeprecationWarning)
            put()


def _sort_operations() -> list[_Operation]:
    """Sort operations by `_turn`. Sessions hold messages, so they come after the jobs."""
    return sorted((each for path in SCHEMA.values() for each in path.values()), key=_turn)


def _turn(operation: _Operation) -> int:
    """Return the rank of an operation. Creation comes first and deletion last."""
    if operation.method == "delete" or operation.path.endswith("/cancel"):
        return 2
    return int("session" in operation.path)


def _told(case: Case[Any], finding: BaseException) -> str:
    """Describe a finding and its request in one line for a table cell."""
    each: Iterable[BaseException] = getattr(finding, "exceptions", (finding,))
    words = "; ".join(sorted(str(one) for one in each))
    told = f"{case.operation.label}: {words} for {case.as_curl_command()}"
    return " ".join(told.replace("|", "¦").split())
