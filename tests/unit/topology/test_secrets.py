"""Password hashes and credentials of a definitions file are left out unless they are asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hopback.cli.app import run
from hopback.topology.definitions import read_definitions, without_secrets

if TYPE_CHECKING:
    from pathlib import Path

_WHOLE: dict[str, Any] = {
    "users": [{"name": "ann", "password_hash": "HUNTER2", "tags": ["administrator"]}],
    "vhosts": [{"name": "/"}],
    "permissions": [{"user": "ann", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
    "parameters": [
        {
            "name": "far",
            "component": "shovel",
            "vhost": "/",
            "value": {"src-uri": ["amqp://bob:HUNTER2@far/"], "src-queue": "q"},
        },
        {"name": "calm", "component": "shovel", "vhost": "/", "value": {"src-uri": "amqp://near"}},
        ["amqp://bob:HUNTER2@far/"],
    ],
    "global_parameters": {"oauth_token": "HUNTER2"},
    "exchanges": [],
    "queues": [{"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
    "bindings": [],
}


def test_definitions_with_secrets_are_omitted_with_note() -> None:
    found, notes = without_secrets(read_definitions(_WHOLE))
    assert "HUNTER2" not in repr(found)
    assert {"users", "permissions", "global_parameters"}.isdisjoint(found.foreign)
    parameters: Any = found.foreign["parameters"]
    assert [one["name"] for one in parameters] == ["calm"]
    assert notes == (
        "users and their permissions left out: they contain password hashes",
        'parameters "far" left out: it contains a secret',
        "an entry of parameters left out: it contains a secret",
        "an entry of global_parameters left out: it contains a secret",
    )


def test_definitions_without_secrets_are_unchanged() -> None:
    harmless = {**_WHOLE, "users": [{"name": "ann"}], "parameters": [], "global_parameters": []}
    topology = read_definitions(harmless)
    assert without_secrets(topology) == (topology, ())


@pytest.mark.parametrize("form", ["table", "json", "toml", "definitions", "mermaid"])
@pytest.mark.parametrize("command", ["show", "export"])
def test_show_prints_no_secret_by_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, form: str
) -> None:
    file = tmp_path / "broker.json"
    file.write_text(json.dumps(_WHOLE))
    assert run(["topology", command, str(file), "-o", form]) == 0
    said = capsys.readouterr()
    assert "HUNTER2" not in said.out + said.err
    assert ("password hashes" in said.err) == (form in ("json", "toml", "definitions"))


def test_secrets_are_kept_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.json"
    file.write_text(json.dumps(_WHOLE))
    assert run(["topology", "export", str(file), "--with-secrets"]) == 0
    assert json.loads(capsys.readouterr().out) == _WHOLE
