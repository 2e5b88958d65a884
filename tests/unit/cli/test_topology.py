"""`hopback topology` and `hopback systems`, run in the process."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from hopback.cli.app import run
from hopback.designs import DESIGNS
from hopback.topology.definitions import write_definitions
from hopback.topology.document import read_toml, to_document
from hopback.topology.table import write_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_Output = pytest.CaptureFixture[str]


def _out(capsys: _Output, *arguments: str, code: int = 0) -> str:
    assert run(arguments) == code
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def test_systems_lists_every_design(capsys: _Output) -> None:
    lines = _out(capsys, "systems").splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", *DESIGNS]


def test_systems_json_contains_parameters(capsys: _Output) -> None:
    listed = json.loads(_out(capsys, "systems", "-o", "json"))
    ratatoskr = next(design for design in listed if design["name"] == "ratatoskr")
    assert {p["name"]: p["default"] for p in ratatoskr["parameters"]} == {
        "queue": "my-service.events",
        "exchange": "ratatoskr.events",
        "routing_keys": "#",
        "retry_delay": "5s",
        "max_retries": "3",
        "queue_type": "quorum",
    }
    assert json.loads(_out(capsys, "systems", "ratatoskr", "-o", "json")) == ratatoskr


def test_systems_describes_system_and_parameters(capsys: _Output) -> None:
    said = _out(capsys, "systems", "raffle")
    assert "retry_ttl_ms" in said
    assert "hopback topology check raffle" in said


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("hardened", [[], ["--hardened"]], ids=["faithful", "hardened"])
def test_topology_show_equals_output_of_library(
    capsys: _Output, name: str, hardened: list[str]
) -> None:
    topology = DESIGNS[name].build(hardened=bool(hardened))
    show = ("topology", "show", name, *hardened)
    assert _out(capsys, *show) == write_table(topology)
    assert json.loads(_out(capsys, *show, "-o", "json")) == json.loads(
        json.dumps(to_document(topology))
    )
    assert read_toml(_out(capsys, *show, "-o", "toml"), where="stdout") == topology
    definitions = json.loads(_out(capsys, "topology", "export", name, *hardened))
    assert definitions == json.loads(json.dumps(write_definitions(topology)[0]))


@pytest.mark.parametrize(
    ("kind", "first"),
    [("flow", "flowchart LR"), ("sequence", "sequenceDiagram"), ("states", "stateDiagram-v2")],
)
def test_topology_is_drawn_as_three_mermaid_diagrams(
    capsys: _Output, kind: str, first: str
) -> None:
    drawn = _out(capsys, "topology", "diagram", "freeflow", "--diagram", kind)
    assert drawn.splitlines()[0] == first


def test_topology_diagram_follows_queue_option(capsys: _Output) -> None:
    arguments = ("topology", "diagram", "freeflow", "--diagram", "states", "--queue")
    assert "freeflow.alarms.queue" in _out(capsys, *arguments, "freeflow.alarms.queue")


def test_definitions_omit_arguments_that_old_broker_refuses(
    capsys: _Output, tmp_path: Path
) -> None:
    """The note is on stderr, so stdout can be imported."""
    path = tmp_path / "new.json"
    queue = {
        "name": "q",
        "vhost": "/",
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    }
    path.write_text(json.dumps({"queues": [queue]}))
    export = ["topology", "export", str(path), "--broker-version"]
    assert run([*export, "3.10"]) == 0
    old = capsys.readouterr()
    assert run([*export, "4.0"]) == 0
    new = capsys.readouterr()
    assert old.err.startswith("Note: ")
    assert "x-delivery-limit" not in json.loads(old.out)["queues"][0]["arguments"]
    assert new.err == ""
    assert json.loads(new.out)["queues"][0]["arguments"]["x-delivery-limit"] == -1


def test_check_explains_each_finding(capsys: _Output) -> None:
    """Severity, place, rule, explanation, fix, and the total at the end."""
    said = _out(capsys, "topology", "check", "freeflow", "--param", "audit=#")
    assert "[retry-reaches-others]" in said
    assert "`freeflow.audit.queue`" in said
    assert said.count("  Fix: ") == said.count("warning: ") + said.count("info: ")
    assert said.splitlines()[-1] == "Found 3 warnings, 1 info."


@pytest.mark.parametrize("name", DESIGNS)
def test_check_of_hardened_form_has_only_info_findings(capsys: _Output, name: str) -> None:
    for version in ("3.10", "4.0", "4.3"):
        options = ("--hardened", "--broker-version", version, "-o", "json")
        checked = json.loads(_out(capsys, "topology", "check", name, *options))
        assert {finding["severity"] for finding in checked["findings"]} <= {"info"}
        assert checked["broker_version"] == version


def test_check_exits_with_1_for_error_and_10_on_request(capsys: _Output) -> None:
    """ratatoskr has errors on 4.0 and warnings on 3.10."""
    check = ("topology", "check", "ratatoskr", "--broker-version")
    _out(capsys, *check, "4.0", code=1)
    _out(capsys, *check, "3.10", code=0)
    _out(capsys, *check, "3.10", "--detailed-exit-code", code=10)
    _out(capsys, *check, "4.0", "--detailed-exit-code", code=10)


def test_vhost_option_selects_objects_and_definitions_name_it(
    capsys: _Output, tmp_path: Path
) -> None:
    path = tmp_path / "both.json"
    queues = [
        {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}}
        for name, vhost in (("q1", "one"), ("q2", "two"))
    ]
    path.write_text(json.dumps({"queues": queues}))
    shown = json.loads(_out(capsys, "topology", "show", str(path), "--vhost", "two", "-o", "json"))
    assert list(shown["queues"]) == ["q2"]
    raffle = json.loads(_out(capsys, "topology", "export", "raffle", "--vhost", "/"))
    assert {item["vhost"] for kind in ("queues", "bindings") for item in raffle[kind]} == {"/"}


_APP = """
from dataclasses import dataclass
from hopback import App

app = App("code_first")

@dataclass
class Order:
    id: int
    note: str = ""

@app.handler("orders", retry=["30s"], bind={"events": "order.*"})
async def handle(order: Order) -> None: ...

@app.batch("rows", retry=["30s"])
async def insert(rows: list[Order]) -> None: ...

@app.handler("raw", retry=["30s"])
async def raw(body: bytes) -> None: ...
"""


@pytest.fixture
def code_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An application in the current directory, by its name."""
    (tmp_path / "code_first.py").write_text(_APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield "code_first:app"
    sys.modules.pop("code_first", None)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["topology", "show"], "orders.retry.30s"),
        (["topology", "check"], "Found 1 info."),
        (["topology", "export"], '"orders.dlq"'),
        (["topology", "diagram"], "flowchart LR"),
        (["simulate", "--queue", "orders", "--fail", "always"], "is parked in orders.dlq"),
    ],
)
def test_application_is_accepted_as_topology(
    code_first: str, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert run([*arguments, code_first]) == 0
    assert told in capsys.readouterr().out


def test_asyncapi_contains_schemas_of_payloads(
    code_first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are listed for queues with typed handlers and for the routing keys that lead there."""
    assert run(["topology", "show", code_first, "-o", "asyncapi"]) == 0
    document = json.loads(capsys.readouterr().out)
    order = {"$ref": "#/components/schemas/Order"}
    channels = document["channels"]
    assert channels["orders"]["messages"] == {"orders": {"name": "orders", "payload": order}}
    assert channels["rows"]["messages"]["rows"]["payload"] == order
    assert channels["raw"]["messages"] == {}
    (entrance,) = (one for one in channels.values() if one["address"] == "order.*")
    assert entrance["messages"]["orders"]["payload"] == order
    properties = document["components"]["schemas"]["Order"]["properties"]
    assert properties["id"] == {"type": "integer"}


def test_hardened_is_refused_for_application(
    code_first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topology", "show", code_first, "--hardened"]) == 2
    assert "--hardened is for a documented system" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "options", "rules"),
    [
        ("3.10.8", (), []),
        ("4.0.5", (), ["delivery-limit-feeds-retry"]),
        ("3.10.8", ("--broker-version", "4.0"), ["delivery-limit-feeds-retry"]),
        ("latest", (), ["delivery-limit-feeds-retry"]),
    ],
)
def test_check_of_export_uses_version_of_its_broker(
    capsys: _Output, tmp_path: Path, version: str, options: tuple[str, ...], rules: list[str]
) -> None:
    written, _ = write_definitions(DESIGNS["ratatoskr"].build({}), vhost="/")
    file = tmp_path / "export.json"
    file.write_text(json.dumps({"rabbit_version": version, **written}))
    run(("topology", "check", str(file), *options, "-o", "json"))
    found = json.loads(capsys.readouterr().out)["findings"]
    grave = [one["rule"] for one in found if one["severity"] == "error"]
    assert [rule for rule in grave if rule == "delivery-limit-feeds-retry"] == rules
