"""Schemathesis sends random valid requests and compares the responses with the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from tests.acceptance.asking import SCHEMA, ask, asked_service, authorization

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemathesis import BaseSchema, Case

    from tests.acceptance.page_server import PageServer

pytestmark = pytest.mark.xdist_group("admin schema")  # one server

_EXAMPLES = 6


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    """One service for all questions."""
    with asked_service() as running:
        yield running


@pytest.fixture(scope="module")
def document() -> BaseSchema:
    """The document without event streams.

    A stream stays open while its job runs and has separate tests.
    """
    return SCHEMA.exclude(path_regex="/events$")


# By fixture: given here, it would think of all questions while tests are collected, in every process.
schema = schemathesis.pytest.from_fixture("document")


# The server runs in a thread and uses `random`, which Hypothesis takes for a strategy that does.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@schema.parametrize()
@settings(
    max_examples=_EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_every_response_matches_openapi_document(case: Case[Any], server: PageServer) -> None:
    """Status, media type and shape are compared. No response is a 500."""
    ask(case, server.url, headers=authorization())
