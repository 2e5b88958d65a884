"""The short form of the HTTP tests. Each operation gets a few requests. In one test, the service
fails on purpose.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

from hopback.ops.http.app import ENDPOINTS
from hopback.ops.http.openapi import openapi_document
from hopback.ops.http.problems import Refused
from hopback.ops.operations import Operations
from tests.faults.http import fuzz_http
from tests.faults.tally import Tally, page

if TYPE_CHECKING:
    import pytest

    from tests.faults.http import Asked

_DOCUMENT = openapi_document(ENDPOINTS)


async def _breaks(*_: object) -> NoReturn:
    raise RuntimeError("planted")


async def _strays(*_: object, **__: object) -> NoReturn:
    raise Refused(418, "teapot", "An answer | that no document knows.")


def _found(asked: Asked, words: str) -> bool:
    return any(finding.startswith(words) for finding in asked.findings)


def test_every_operation_answers_as_documented() -> None:
    """Some requests are accepted and others are refused. The row of the page contains their
    numbers.
    """
    asked = fuzz_http(6, 7, math.inf)
    assert asked.findings == []
    assert asked.operations == {
        f"{method.upper()} {path}" for path, each in _DOCUMENT["paths"].items() for method in each
    }
    assert asked.of(200) > 30
    assert asked.of(400) > 100
    assert asked.of(200) + asked.of(400) == asked.statuses.total()
    what, much, verdict = asked.row()
    assert what == "bad input: HTTP requests"
    assert f"{asked.of(400):,} refused, {asked.of(200):,} accepted, 0 × 5xx" in much
    assert verdict == "only documented errors"


def test_undocumented_status_and_500_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The findings appear on the page."""
    monkeypatch.setattr(Operations, "queue", _breaks)
    monkeypatch.setattr(Operations, "job", _strays)
    asked = fuzz_http(1, 7, math.inf)
    assert asked.of(500)
    assert _found(asked, "GET /admin/dlq/queues/{queue}: Server error")
    assert _found(asked, "GET /admin/dlq/jobs/{job}: Undocumented status code Received: 418")
    tally = Tally(checks=[asked.row()])
    assert tally.failed
    written = next(line for line in page("", tally, "x").splitlines() if "HTTP requests" in line)
    assert f"failed {len(asked.findings)} times: " in written
    assert written.count("|") == 4
