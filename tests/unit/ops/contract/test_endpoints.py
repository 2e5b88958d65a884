"""The table of endpoints that the server and its HTTP client share."""

from __future__ import annotations

import subprocess
import sys
from inspect import signature
from typing import Any

import pytest

from hopback.ops.client import RemoteDeadLetters
from hopback.ops.contract.endpoints import BY_OPERATION, SHARED, ApiEndpoint, Empty
from hopback.ops.contract.interface import DeadLetters
from hopback.ops.contract.requests import Edit, EditRequest, MessagesQuery, RetryRequest
from hopback.ops.notes.values import GroupNotes

_OPERATIONS = [row for row in SHARED if row.operation]


def _methods(interface: type) -> set[str]:
    return {name for name in vars(interface) if not name.startswith("_")}


def test_client_has_every_operation_of_the_interface() -> None:
    wanted = _methods(DeadLetters) | {f"notes.{name}" for name in _methods(GroupNotes)}
    assert wanted - BY_OPERATION.keys() - set(vars(RemoteDeadLetters)) == set()


@pytest.mark.parametrize("row", _OPERATIONS, ids=lambda row: row.name)
def test_path_query_and_body_of_a_row_fit_its_operation(row: ApiEndpoint) -> None:
    _, *names = signature(row.interface).parameters
    left = set(names[len(row.path_names) :]) - {"on_progress", "survey"}
    kinds: tuple[Any, ...] = (row.query, row.body)
    for kind in kinds:
        fields = set() if kind in (None, Empty) else set(kind.__struct_fields__)
        # The value is one argument unless the operation has an argument for each of its fields.
        left -= fields if fields <= left else {names[len(row.path_names)]}
    assert left == set()
    assert not row.result or row.result in row.answer.__struct_fields__


def test_arguments_of_a_call_become_path_query_and_body_and_back() -> None:
    row, request = BY_OPERATION["edit_and_redrive"], EditRequest(edit=Edit(body=b"x"), reason="r")
    assert row.read_arguments(("s", "m", request), {}) == (["s", "m"], None, request)
    assert row.write_arguments(Empty(), request) == ([request], {})
    row = BY_OPERATION["retry_failures"]
    assert row.read_arguments(("j",), {"reason": "r"}) == (["j"], None, RetryRequest("r"))
    assert row.write_arguments(Empty(), RetryRequest("r")) == ([], {"reason": "r"})
    messages = BY_OPERATION["messages"].read_arguments(("s", "age>1h"), {"limit": 5})
    assert messages == (["s"], MessagesQuery("age>1h", limit=5), None)


def test_client_does_not_import_the_server() -> None:
    code = "import sys, hopback.ops.client; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert {name for name in loaded if name.startswith(("starlette", "hopback.ops.http"))} == set()
