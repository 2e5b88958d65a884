"""The service does what its OpenAPI document says: Schemathesis asks whatever the document allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from hopback.admin.application import ENDPOINTS
from hopback.admin.documented_schema import DOCUMENTED_PATHS
from hopback.admin.keys import new_key
from hopback.admin.openapi import openapi_document
from hopback.admin.roles import Grant, Role
from hopback.admin.settings import parse_settings
from tests.acceptance.page_server import PageServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemathesis import Case

pytestmark = pytest.mark.xdist_group("admin schema")  # one server

_EXAMPLES = 6
_KEY, _KEPT = new_key("schemathesis", Grant(Role.ADMIN), expires=None, made_by="", now=0.0)
_SETTINGS = {
    "auth": {"keys": [{"name": "test", "hash": _KEPT.hash, "role": "admin"}]},
    "limits": {"sessions_per_caller": 1000, "sessions": 1000},
}


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    """The service with a seeded broker, behind a real socket."""
    with PageServer(settings=parse_settings(_SETTINGS, {}, "test")) as running:
        yield running


# A stream stays open for as long as its job runs; it is tested by itself.
schema = schemathesis.openapi.from_dict(openapi_document(ENDPOINTS, DOCUMENTED_PATHS)).exclude(
    path_regex="/events$"
)


@schema.parametrize()
@settings(
    max_examples=_EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_the_document_knows(case: Case[Any], server: PageServer) -> None:
    """Status, media type and shape of each answer are in the document; nothing ends in a 500."""
    case.call_and_validate(
        base_url=server.url,
        headers={"Authorization": f"Bearer {_KEY}"},
        timeout=20,
        # What has the right shape may still name no queue, or not repeat its name.
        excluded_checks=[positive_data_acceptance],
    )
