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
    """One line each, under a heading."""
    lines = _out(capsys, "systems").splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", *DESIGNS]


def test_systems_as_json_holds_the_parameters(capsys: _Output) -> None:
    """Names, defaults and what is expected, for scripts."""
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


def test_a_system_is_described(capsys: _Output) -> None:
    """Its own words, its parameters, and what to do next."""
    said = _out(capsys, "systems", "raffle")
    assert "retry_ttl_ms" in said
    assert "hopback topology check raffle" in said


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("hardened", [[], ["--hardened"]], ids=["faithful", "hardened"])
def test_every_form_of_a_topology_is_what_the_library_writes(
    capsys: _Output, name: str, hardened: list[str]
) -> None:
    """The command adds nothing to what the library says, and leaves nothing out."""
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
def test_a_topology_is_drawn_in_three_ways(capsys: _Output, kind: str, first: str) -> None:
    """Each kind of diagram begins as Mermaid expects it."""
    drawn = _out(capsys, "topology", "diagram", "freeflow", "--diagram", kind)
    assert drawn.splitlines()[0] == first


def test_a_diagram_follows_the_queue_that_is_asked_for(capsys: _Output) -> None:
    """`--queue` chooses whose message is drawn."""
    arguments = ("topology", "diagram", "freeflow", "--diagram", "states", "--queue")
    assert "freeflow.alarms.queue" in _out(capsys, *arguments, "freeflow.alarms.queue")


def test_what_an_old_broker_would_refuse_is_left_out_and_said(
    capsys: _Output, tmp_path: Path
) -> None:
    """The definitions on stdout stay importable; the note is on stderr."""
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
    """Severity, place, rule, explanation, fix, and a sum at the end."""
    said = _out(capsys, "topology", "check", "freeflow", "--param", "audit=#")
    assert "[retry-reaches-others]" in said
    assert "`freeflow.audit.queue`" in said
    assert said.count("  Fix: ") == said.count("warning: ") + said.count("info: ")
    assert said.splitlines()[-1] == "Found 3 warnings, 1 info."


@pytest.mark.parametrize("name", DESIGNS)
def test_check_finds_nothing_in_a_hardened_form(capsys: _Output, name: str) -> None:
    """At most information is left, on every version."""
    for version in ("3.10", "4.0", "4.3"):
        options = ("--hardened", "--broker-version", version, "-o", "json")
        checked = json.loads(_out(capsys, "topology", "check", name, *options))
        assert {finding["severity"] for finding in checked["findings"]} <= {"info"}
        assert checked["broker_version"] == version


def test_check_leaves_with_1_for_an_error_and_10_when_asked(capsys: _Output) -> None:
    """ratatoskr has errors on 4.0, warnings on 3.10."""
    check = ("topology", "check", "ratatoskr", "--broker-version")
    _out(capsys, *check, "4.0", code=1)
    _out(capsys, *check, "3.10", code=0)
    _out(capsys, *check, "3.10", "--detailed-exit-code", code=10)
    _out(capsys, *check, "4.0", "--detailed-exit-code", code=10)


def test_a_virtual_host_is_chosen_and_named(capsys: _Output, tmp_path: Path) -> None:
    """Of two virtual hosts one is read; every object written for a whole broker names its own."""
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
def test_what_an_application_declares_is_a_topology(
    code_first: str, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """MODULE:APP stands wherever a system or a file does."""
    assert run([*arguments, code_first]) == 0
    assert told in capsys.readouterr().out


def test_asyncapi_has_the_schemas_of_the_payloads(
    code_first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each queue whose handler says what it takes, and of the keys that lead there."""
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


def test_an_application_takes_no_form(code_first: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It says itself what it declares."""
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
def test_check_judges_an_export_for_the_version_of_its_broker(
    capsys: _Output, tmp_path: Path, version: str, options: tuple[str, ...], rules: list[str]
) -> None:
    written, _ = write_definitions(DESIGNS["ratatoskr"].build({}), vhost="/")
    file = tmp_path / "export.json"
    file.write_text(json.dumps({"rabbit_version": version, **written}))
    run(("topology", "check", str(file), *options, "-o", "json"))
    found = json.loads(capsys.readouterr().out)["findings"]
    grave = [one["rule"] for one in found if one["severity"] == "error"]
    assert [rule for rule in grave if rule == "delivery-limit-feeds-retry"] == rules
