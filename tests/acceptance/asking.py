"""Requests that Schemathesis generates from the OpenAPI document, and checks of their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

from hopback.ops.contract.roles import Grant, Role
from hopback.ops.http.app import ENDPOINTS
from hopback.ops.http.keys import new_key
from hopback.ops.http.openapi import openapi_document
from hopback.ops.http.settings import parse_settings
from tests.acceptance.page_server import PageServer

if TYPE_CHECKING:
    from schemathesis import Case, Response

__all__ = ["SCHEMA", "ask", "asked_service", "authorization"]

_PATIENCE_S = 20
_KEY, _KEPT = new_key("schemathesis", Grant(Role.ADMIN), expires=None, made_by="", now=0.0)
_SETTINGS = {
    "auth": {"keys": [{"name": "test", "hash": _KEPT.hash, "role": "admin"}]},
    # One address sends thousands of requests, often with wrong credentials.
    "limits": {"sessions_per_caller": 1000, "sessions": 1000, "failures_per_minute": 1_000_000},
}

SCHEMA = schemathesis.openapi.from_dict(openapi_document(ENDPOINTS))
"""The OpenAPI document of the service."""


def asked_service() -> PageServer:
    """Return the service with a seeded broker, on a socket and with sign-in."""
    return PageServer(settings=parse_settings(_SETTINGS, {}, "test"))


def authorization() -> dict[str, str]:
    """Return the authorization of an admin. A new object, because Schemathesis changes it."""
    return {"Authorization": f"Bearer {_KEY}"}


def ask(case: Case[Any], url: str, **transport: Any) -> Response:
    """Return the answer if its status, media type and shape are documented and it is not a 5xx.

    FailureGroup contains all failures. `transport` is for `Case.call`.
    """
    return case.call_and_validate(
        base_url=url,
        timeout=_PATIENCE_S,
        # A valid shape may still name a missing queue or omit the repeated name.
        excluded_checks=[positive_data_acceptance],
        **transport,
    )
